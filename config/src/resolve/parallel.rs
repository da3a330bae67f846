//! Ranks, nodes, threads and cores.

use lockstep_types::{CollectiveConfig, ParallelConfig};

use super::device::Device;
use super::{ConfigError, Hardware, ModelConfig, ServeArgs, dp_attention, secret};
use crate::args::ParallelArgs;
use crate::hardware::parse_cores;

/// Distribution of ranks over nodes, threads and cores.
pub(super) struct Ranks {
    pub(super) parallel: ParallelConfig,
    pub(super) node_rank: usize,
    pub(super) cores: Vec<Vec<usize>>,
    pub(super) dist_secret: Option<String>,
}

pub(super) fn resolve(
    args: &ServeArgs,
    model: &ModelConfig,
    hardware: &Hardware,
    device: &Device,
) -> Result<Ranks, ConfigError> {
    let given = &args.parallel;
    let tp_size = given.tp_size.unwrap_or(1);
    let dp_size = dp_attention::dp_size(given, model, tp_size)?;
    let ep_size = ep_size(given, model, tp_size)?;
    dp_attention::check_split(model, tp_size, dp_size, ep_size)?;
    let nnodes = given.nnodes.unwrap_or(1);
    if !tp_size.is_multiple_of(nnodes) {
        return Err(ConfigError::conflict(
            format!("--tp-size {tp_size}"),
            format!("--nnodes {nnodes}"),
            "every node needs the same number of ranks",
            "Give a --tp-size that the number of nodes divides",
        ));
    }
    let node_rank = given.node_rank.unwrap_or(0);
    if node_rank >= nnodes {
        return Err(ConfigError::conflict(
            format!("--node-rank {node_rank}"),
            format!("--nnodes {nnodes}"),
            "nodes are numbered from 0",
            format!("Give a --node-rank below {nnodes}, or more --nnodes"),
        ));
    }
    let dist_secret = secret::dist_secret(given)?;
    let dist_init_addr = rendezvous(args, nnodes, dist_secret.is_some())?;
    let local = tp_size / nnodes;
    let (cores, pinned_threads) = pin(args, local, hardware)?;
    // One thread drives a device that computes by itself.
    let driver = (!device.rooms.is_empty()).then_some(1);
    let threads_per_rank = driver
        .or(pinned_threads)
        .or(given.threads_per_rank)
        .unwrap_or_else(|| (hardware.cores.len() / local).max(1));
    let tokenizer_managers = given.tokenizer_managers.unwrap_or(1);
    if tokenizer_managers > 64 {
        return Err(ConfigError::value(
            "--tokenizer-managers",
            tokenizer_managers,
            "at most 64 can be started",
            "One is enough for thousands of tokens a second",
        ));
    }
    let parallel = ParallelConfig {
        tp_size,
        dp_size,
        ep_size,
        nnodes,
        dist_init_addr,
        threads_per_rank,
        tokenizer_managers,
        collectives: CollectiveConfig::default(),
    };
    Ok(Ranks {
        parallel,
        node_rank,
        cores,
        dist_secret,
    })
}

/// Number of groups of ranks that experts are split over by number.
fn ep_size(
    given: &ParallelArgs,
    model: &ModelConfig,
    tp_size: usize,
) -> Result<usize, ConfigError> {
    let ep_size = given.ep_size.unwrap_or(1);
    let works = model.ep_sizes(tp_size);
    if works.contains(&ep_size) {
        return Ok(ep_size);
    }
    let option = format!("--ep-size {ep_size}");
    let tp_size = format!("--tp-size {tp_size}");
    Err(match model.fewest_experts() {
        0 => {
            let why = "the model has no experts";
            ConfigError::value("--ep-size", ep_size, why, "Leave it out")
        }
        experts => ConfigError::conflict(
            option,
            tp_size,
            if model.splits_experts_by_number() {
                format!(
                    "all groups have as many ranks, and each needs one of a layer's {experts} experts"
                )
            } else {
                "the shared expert of experts without gates is not served apart from them".into()
            },
            format!("Sizes that work: {}", dp_attention::list(&works)),
        ),
    })
}

/// A note about ranks that compute with more threads than the machine has cores.
pub(super) fn crowded(
    parallel: &ParallelConfig,
    hardware: &Hardware,
    device: &Device,
) -> Option<String> {
    let ranks = parallel.tp_size / parallel.nnodes;
    let (each, cores) = (parallel.threads_per_rank, hardware.cores.len());
    let computes = device.rooms.is_empty();
    (computes && ranks * each > cores).then(|| {
        format!(
            "{ranks} ranks with {each} threads each take turns on {cores} cores, and every step \
             waits for the last of them: fewer ranks or --threads-per-rank are faster"
        )
    })
}

/// The address of node 0, if there are several nodes.
fn rendezvous(args: &ServeArgs, nnodes: usize, secret: bool) -> Result<String, ConfigError> {
    let needs = |option: &str, remedy: &str| {
        let why = "several nodes need it";
        ConfigError::conflict(format!("--nnodes {nnodes}"), option, why, remedy)
    };
    let useless = |option: &str| {
        let why = "a single node has nobody to meet";
        ConfigError::conflict(option, "--nnodes 1", why, "Leave it out, or give --nnodes")
    };
    match (&args.parallel.dist_init_addr, nnodes > 1) {
        (None, false) if secret => Err(useless("--dist-secret")),
        (None, false) => Ok(String::new()),
        (Some(_), false) => Err(useless("--dist-init-addr")),
        (None, true) => {
            let remedy = "Give node 0's address, as --dist-init-addr 10.0.0.1:5000, on every node";
            Err(needs("--dist-init-addr", remedy))
        }
        (Some(_), true) if !secret => {
            let remedy = "Make one with `openssl rand -hex 32` and give it on every node, by \
                          LOCKSTEP_DIST_SECRET or --dist-secret-file";
            Err(needs("--dist-secret", remedy))
        }
        (Some(address), true) => {
            let good = address.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
            });
            if good {
                return Ok(address.clone());
            }
            let remedy = "Give it as --dist-init-addr 10.0.0.1:5000";
            Err(ConfigError::value(
                "--dist-init-addr",
                address,
                "is not host:port",
                remedy,
            ))
        }
    }
}

/// Cores of each local rank, and the number of threads that listed cores imply.
fn pin(
    args: &ServeArgs,
    local: usize,
    hardware: &Hardware,
) -> Result<(Vec<Vec<usize>>, Option<usize>), ConfigError> {
    const OPTION: &str = "--pin-cores";
    let Some(text) = &args.parallel.pin_cores else {
        return Ok((Vec::new(), None));
    };
    if text == "auto" {
        return spread(args, local, hardware).map(|cores| (cores, None));
    }
    let lists: Vec<_> = text
        .split('|')
        .map(parse_cores)
        .collect::<Result<_, _>>()
        .map_err(|why| {
            ConfigError::value(OPTION, text, why, "Give `auto` or lists such as 0-3|4-7")
        })?;
    let threads = lists.first().map_or(0, Vec::len);
    if lists.len() != local || threads == 0 || lists.iter().any(|list| list.len() != threads) {
        let why = format!("needs {local} lists of equal length, one for each rank of this node");
        return Err(ConfigError::value(
            OPTION,
            text,
            why,
            "Separate the ranks by |",
        ));
    }
    if let Some(core) = lists
        .iter()
        .flatten()
        .find(|core| !hardware.cores.contains(core))
    {
        let why = format!("core {core} is not available to this process");
        let remedy = format!("Available are {:?}", hardware.cores);
        return Err(ConfigError::value(OPTION, text, why, remedy));
    }
    let mut all: Vec<_> = lists.iter().flatten().collect();
    all.sort_unstable();
    if let Some(twice) = all.windows(2).find(|pair| pair[0] == pair[1]) {
        let why = format!(
            "core {} is given twice, and two threads would take turns",
            twice[0]
        );
        return Err(ConfigError::value(OPTION, text, why, "Give each core once"));
    }
    match args.parallel.threads_per_rank {
        Some(given) if given != threads => Err(ConfigError::conflict(
            format!("--threads-per-rank {given}"),
            format!("--pin-cores {text}"),
            format!("the lists have {threads} cores each, one per thread"),
            "Leave --threads-per-rank out",
        )),
        _ => Ok((lists, Some(threads))),
    }
}

/// Available cores, dealt out in blocks.
fn spread(
    args: &ServeArgs,
    local: usize,
    hardware: &Hardware,
) -> Result<Vec<Vec<usize>>, ConfigError> {
    let available = hardware.cores.len();
    let threads = args
        .parallel
        .threads_per_rank
        .unwrap_or((available / local).max(1));
    if threads * local > available {
        return Err(ConfigError::conflict(
            "--pin-cores auto",
            format!("{local} ranks of {threads} threads"),
            format!("{available} cores are available, and pinned threads would take turns"),
            "Leave --pin-cores out, or use fewer ranks or --threads-per-rank",
        ));
    }
    Ok(hardware
        .cores
        .chunks(threads)
        .take(local)
        .map(<[usize]>::to_vec)
        .collect())
}
