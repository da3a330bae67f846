//! Latency of `all_reduce_sum` by size, over shared memory and TCP. Sums with nothing attached
//! alternate with sums with words attached, which every rank then reads.
//!
//! ```sh
//! cargo run --release -p lockstep-collective --example latency
//! ```
#![expect(clippy::print_stdout, reason = "prints a table")]

use std::thread;
use std::time::{Duration, Instant};

use lockstep_collective::{Collective, CollectiveError, Tcp, local_group};

const RANKS: usize = 2;
/// Number of words attached, as many as a step of a worker has.
const WORDS: usize = 46;

type Members = Vec<Box<dyn Collective>>;

fn main() -> Result<(), CollectiveError> {
    println!(
        "{:<14} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "transport", "bytes", "p50 us", "p99 us", "+words p50", "p99 us"
    );
    for elements in [1, 256, 1024, 2048, 4096, 16_384, 65_536, 1 << 20] {
        let shared = local_group(RANKS)
            .into_iter()
            .map(|member| Box::new(member) as _);
        measure("shared memory", shared.collect(), elements)?;
        measure("TCP loopback", tcp_group()?, elements)?;
    }
    Ok(())
}

fn tcp_group() -> Result<Members, CollectiveError> {
    let handles = (0..RANKS).map(|_| Tcp::bind("127.0.0.1:0"));
    let handles = handles.collect::<Result<Vec<_>, _>>()?;
    let addresses: Vec<_> = handles.iter().map(|handle| handle.address()).collect();
    let join = |(rank, handle): (usize, lockstep_collective::TcpListenerHandle)| {
        let addresses = addresses.clone();
        thread::spawn(move || handle.connect(rank, &addresses, "latency", b"latency"))
    };
    let threads: Vec<_> = handles.into_iter().enumerate().map(join).collect();
    let member = |thread: thread::JoinHandle<Result<Tcp, CollectiveError>>| {
        let member = thread.join().expect("a rank panicked")?;
        Ok(Box::new(member) as Box<dyn Collective>)
    };
    threads.into_iter().map(member).collect()
}

fn measure(name: &str, members: Members, elements: usize) -> Result<(), CollectiveError> {
    let rounds = (40_000_000 / (elements + 2_000)).min(10_000);
    let run = |member| thread::spawn(move || times(member, elements, rounds));
    let threads: Vec<_> = members.into_iter().map(run).collect();
    let times = threads
        .into_iter()
        .map(|thread| thread.join().expect("a rank panicked"));
    let times = times.collect::<Result<Vec<_>, CollectiveError>>()?;
    print!("{name:<14} {:>10}", elements * 4);
    for with_words in [0, 1] {
        let of_ranks = times.iter().flat_map(|times| &times[with_words]);
        let mut times: Vec<_> = of_ranks.collect();
        times.sort_unstable();
        let micros = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e6;
        print!(" {:>10.2} {:>10.2}", micros(0.5), micros(0.99));
    }
    println!();
    Ok(())
}

/// Returns the times of sums with nothing attached, and of sums with words.
fn times(
    mut member: Box<dyn Collective>,
    elements: usize,
    rounds: usize,
) -> Result<[Vec<Duration>; 2], CollectiveError> {
    let mut data = vec![1.0; elements];
    let (mut words, mut all) = ([0; WORDS], [0; RANKS * WORDS]);
    let mut times = [(); 2].map(|()| Vec::with_capacity(rounds));
    for round in 0..rounds + rounds / 10 {
        for (with_words, times) in times.iter_mut().enumerate() {
            // The ranks begin together, whatever came before.
            member.barrier()?;
            let start = Instant::now();
            if with_words == 1 {
                words.fill(round as u32);
                member.attach(5, &words)?;
            }
            member.all_reduce_sum(&mut data)?;
            if with_words == 1 {
                assert!(member.attached(&mut all), "they have travelled");
            }
            // The first tenth warms up.
            if round >= rounds / 10 {
                times.push(start.elapsed());
            }
            data.fill(1.0);
        }
    }
    Ok(times)
}
