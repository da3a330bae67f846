//! Prompts of a measurement: random token ids, or prompts of a file.

use lockstep_types::ConfigError;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde::{Deserialize, Serialize};

use super::Args;

/// A prompt in the form of the completions route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// Token ids.
    Ids(Vec<u32>),
    /// Text, for servers that take no ids.
    Text(String),
}

/// Source of prompts.
pub enum Prompts {
    /// Random ids behind a shared prefix.
    Random {
        /// Tokens of a prompt.
        length: usize,
        /// Tokens that all prompts begin with.
        shared: usize,
        /// Upper bound of the ids, which are below it.
        vocab: u32,
        /// Seed of all ids.
        seed: u64,
    },
    /// Prompts of a file, taken in turn.
    Given {
        /// The prompts, at least one.
        prompts: Vec<Prompt>,
        /// Requests of the warm-up, which is round 0.
        warm_up: usize,
        /// Requests of every later round.
        requests: usize,
    },
}

impl Prompts {
    /// The prompts that the arguments name.
    ///
    /// # Errors
    /// A file that can't be read, is empty, or has a line that is no prompt.
    pub fn of(args: &Args) -> anyhow::Result<Self> {
        let Some(path) = &args.prompts else {
            return Ok(Self::Random {
                length: args.input_len,
                shared: args.shared_prefix.min(args.input_len),
                vocab: args.vocab,
                seed: args.seed,
            });
        };
        let wrong = |message| ConfigError::file("--prompts", path, message);
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let read = |(line, text): (usize, &str)| {
            serde_json::from_str(text).map_err(|error| {
                wrong(format!(
                    "line {line}: expected a JSON string or an array of token ids: {error}"
                ))
            })
        };
        let prompts: Vec<Prompt> = (1..)
            .zip(text.lines())
            .map(read)
            .collect::<Result<_, ConfigError>>()?;
        if prompts.is_empty() {
            return Err(wrong("no prompts".to_owned()).into());
        }
        Ok(Self::Given {
            prompts,
            warm_up: args.warm_up,
            requests: args.requests,
        })
    }

    /// The prompt of a request. Prompts are different in every round, so that the server's
    /// cache serves the shared prefix only.
    pub fn get(&self, round: u64, index: usize) -> Prompt {
        match self {
            Self::Random {
                length,
                shared,
                vocab,
                seed,
            } => {
                let mut prefix = StdRng::seed_from_u64(*seed);
                let own = seed ^ (round << 40) ^ ((index as u64 + 1) << 8);
                let mut own = StdRng::seed_from_u64(own);
                let low = 3.min(vocab.saturating_sub(1));
                let id = |at| {
                    if at < *shared { &mut prefix } else { &mut own }.random_range(low..*vocab)
                };
                Prompt::Ids((0..*length).map(id).collect())
            }
            Self::Given {
                prompts,
                warm_up,
                requests,
            } => {
                let round = usize::try_from(round).unwrap_or(usize::MAX);
                let before = round
                    .checked_sub(1)
                    .map_or(0, |rounds| warm_up + rounds * requests);
                prompts[(before + index) % prompts.len()].clone()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &[&str]) -> anyhow::Result<Args> {
        let line = std::iter::once(&"serve").chain(line);
        Ok(<Line as clap::Parser>::try_parse_from(line)?.args)
    }

    #[test]
    fn random_prompts_share_their_prefix_alone() -> anyhow::Result<()> {
        let prompts = Prompts::of(&args(&["--input-len", "20", "--shared-prefix", "8"])?)?;
        let Prompt::Ids(first) = prompts.get(1, 0) else {
            anyhow::bail!("text");
        };
        assert_eq!(prompts.get(1, 0), Prompt::Ids(first.clone()));
        assert_eq!(first.len(), 20);
        for (round, index) in [(0, 0), (1, 1), (2, 0)] {
            let Prompt::Ids(other) = prompts.get(round, index) else {
                anyhow::bail!("text");
            };
            assert_eq!(other[..8], first[..8]);
            assert_ne!(other[8..], first[8..]);
        }
        Ok(())
    }

    #[test]
    fn a_files_prompts_are_taken_in_turn() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("prompts.jsonl");
        std::fs::write(&path, "\"zero\"\n[1, 1]\n[2]\n[3]\n[4]\n")?;
        let file = path.to_str().context("path")?;
        let args = args(&["--prompts", file, "--warm-up", "1", "--requests", "2"])?;
        let prompts = Prompts::of(&args)?;
        assert_eq!(prompts.get(0, 0), Prompt::Text("zero".into()));
        assert_eq!(prompts.get(1, 0), Prompt::Ids(vec![1, 1]));
        assert_eq!(prompts.get(1, 1), Prompt::Ids(vec![2]));
        assert_eq!(prompts.get(2, 1), Prompt::Ids(vec![4]));
        assert_eq!(prompts.get(3, 0), Prompt::Text("zero".into()));
        for wrong in ["", "[-1]\n", "[1]\n\n"] {
            std::fs::write(&path, wrong)?;
            assert!(Prompts::of(&args).is_err(), "{wrong:?}");
        }
        Ok(())
    }

    #[test]
    fn a_prompt_is_sent_as_it_is() -> anyhow::Result<()> {
        let sent = |prompt| serde_json::to_string(&prompt);
        assert_eq!(sent(Prompt::Ids(vec![3, 4]))?, "[3,4]");
        assert_eq!(sent(Prompt::Text("a b".into()))?, "\"a b\"");
        Ok(())
    }
}
