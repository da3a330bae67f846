//! The last steps of a rank, kept to be written down if ranks differ: a flight recorder.

use std::{
    fs::OpenOptions,
    io::{self, BufWriter, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use lockstep_types::step::{StageTimes, StepDigests};

/// Number of steps that are kept.
const KEPT: usize = 4096;

/// Record of a step on one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepRecord {
    /// The step's number.
    pub step: u64,
    /// Draft steps that its plan asked for.
    pub depth: u32,
    /// Number of rows of this rank's batch.
    pub requests: u32,
    /// Number of new tokens of these rows, drafts included.
    pub tokens: u32,
    /// Number of tokens whose logits were wanted.
    pub wanted: u32,
    /// Number of tokens of the longest row.
    pub longest: u32,
    /// Digests after the step. After a step that failed, the digests at the point of failure.
    pub digests: StepDigests,
    /// Times of the step on this rank.
    pub times: StageTimes,
}

/// A rank's last steps.
#[derive(Debug)]
pub struct Recorder {
    /// The steps, in a ring once there are [`KEPT`].
    steps: Vec<StepRecord>,
    /// Index of the next step.
    next: usize,
}

impl Recorder {
    /// Makes a recorder without steps, with room for all that it keeps.
    pub fn new() -> Self {
        Self {
            steps: Vec::with_capacity(KEPT),
            next: 0,
        }
    }

    /// Keeps a step.
    pub fn note(&mut self, step: StepRecord) {
        match self.steps.get_mut(self.next) {
            Some(oldest) => *oldest = step,
            None => self.steps.push(step),
        }
        self.next = (self.next + 1) % KEPT;
    }

    /// Writes the kept steps to a new file in `folder` that only its owner can read. The file
    /// has a line of JSON for each step, the oldest first.
    ///
    /// # Errors
    /// [`io::Error`], also if a file of that name exists.
    pub fn write(&self, folder: &Path, rank: usize) -> io::Result<PathBuf> {
        let name = format!("lockstep-steps-{}-rank-{rank}.jsonl", std::process::id());
        let path = folder.join(name);
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600);
        let mut file = BufWriter::new(file.open(&path)?);
        let (newer, older) = self.steps.split_at(self.next.min(self.steps.len()));
        for step in older.iter().chain(newer) {
            write_step(&mut file, step)?;
        }
        file.flush()?;
        Ok(path)
    }
}

fn write_step(out: &mut impl Write, record: &StepRecord) -> io::Result<()> {
    let StepRecord {
        step,
        depth,
        requests,
        tokens,
        wanted,
        longest,
        digests: StepDigests { tensor, world },
        times:
            StageTimes {
                draft_us,
                verify_us,
                extend_us,
            },
    } = record;
    writeln!(
        out,
        "{{\"step\": {step}, \"depth\": {depth}, \"requests\": {requests}, \"tokens\": {tokens}, \
         \"wanted\": {wanted}, \"longest\": {longest}, \"group_digest\": \"{tensor:016x}\", \
         \"world_digest\": \"{world:016x}\", \"draft_us\": {draft_us}, \"verify_us\": {verify_us}, \
         \"extend_us\": {extend_us}}}"
    )
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn written(steps: impl Iterator<Item = u64>) -> Vec<serde_json::Value> {
        let mut recorder = Recorder::new();
        for step in steps {
            recorder.note(StepRecord {
                step,
                depth: 3,
                digests: StepDigests {
                    tensor: 10,
                    world: 11,
                },
                ..StepRecord::default()
            });
        }
        let folder = tempfile::tempdir().unwrap();
        let path = recorder.write(folder.path(), 2).unwrap();
        assert!(path.to_str().unwrap().contains("rank-2"));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = recorder.write(folder.path(), 2).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        let lines = fs::read_to_string(path).unwrap();
        let lines = lines.lines().map(serde_json::from_str);
        lines.map(Result::unwrap).collect()
    }

    #[test]
    fn the_last_steps_are_kept_in_order() {
        for (count, first) in [(0, 1), (5, 1), (4096, 1), (4097, 2), (10_000, 5905)] {
            let steps: Vec<_> = written(1..=count)
                .iter()
                .map(|line| line["step"].as_u64().unwrap())
                .collect();
            assert_eq!(steps, (first..=count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_step_is_written_whole() {
        let line = &written(7..8)[0];
        assert_eq!(line["depth"], 3);
        assert_eq!(line["group_digest"], "000000000000000a");
        assert_eq!(line["world_digest"], "000000000000000b");
        for field in [
            "requests",
            "tokens",
            "wanted",
            "longest",
            "draft_us",
            "verify_us",
            "extend_us",
        ] {
            assert_eq!(line[field], 0, "{field}");
        }
    }
}
