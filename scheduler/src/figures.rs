//! What frontends know of themselves, for whichever of them is asked: a client
//! reaches one, and that one asks all of them here.

use std::collections::BTreeMap;

use lockstep_proto::pb::lockstep::FrontFigures;
use tokio::sync::mpsc;

/// Queries that may wait at once. They end within the limit of who asks, so
/// this many are there only where somebody floods the ports with scrapes.
const QUERIES: usize = 64;

/// The queries that are not answered in full.
#[derive(Default)]
pub struct Figures {
    queries: BTreeMap<u64, Query>,
    next: u64,
}

struct Query {
    answers: mpsc::Sender<FrontFigures>,
    missing: usize,
}

impl Figures {
    /// Begins a query: its number, and where its answers come, which ends with
    /// the last of them. `ask` puts it to the frontends and says to how many.
    pub fn begin(&mut self, ask: impl FnOnce(u64) -> usize) -> mpsc::Receiver<FrontFigures> {
        // Who waited long enough has dropped the other end.
        self.queries.retain(|_, query| !query.answers.is_closed());
        if self.queries.len() >= QUERIES {
            let (_, ended) = mpsc::channel(1);
            return ended;
        }
        let number = self.next;
        self.next += 1;
        let missing = ask(number);
        let (answers, receiver) = mpsc::channel(missing.max(1));
        if missing > 0 {
            self.queries.insert(number, Query { answers, missing });
        }
        receiver
    }

    /// Takes one answer; one that comes too late is nobody's.
    pub fn answer(&mut self, query: u64, figures: FrontFigures) {
        let Some(open) = self.queries.get_mut(&query) else {
            return;
        };
        // There is room for all; who asked may have left.
        let _ = open.answers.try_send(figures);
        open.missing -= 1;
        if open.missing == 0 {
            self.queries.remove(&query);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn front(index: u32) -> FrontFigures {
        FrontFigures {
            index,
            ..FrontFigures::default()
        }
    }

    #[test]
    fn a_query_ends_with_its_last_answer() {
        let mut figures = Figures::default();
        let mut numbers = Vec::new();
        let mut answers = figures.begin(|number| {
            numbers.push(number);
            2
        });
        let mut nobody = figures.begin(|_| 0);
        assert!(
            nobody
                .try_recv()
                .is_err_and(|end| end == mpsc::error::TryRecvError::Disconnected)
        );
        let number = numbers[0];
        figures.answer(number + 1, front(7));
        figures.answer(number, front(1));
        assert_eq!(answers.try_recv(), Ok(front(1)));
        assert_eq!(answers.try_recv(), Err(mpsc::error::TryRecvError::Empty));
        figures.answer(number, front(0));
        figures.answer(number, front(0));
        assert_eq!(answers.try_recv(), Ok(front(0)));
        assert_eq!(
            answers.try_recv(),
            Err(mpsc::error::TryRecvError::Disconnected)
        );
        assert!(figures.queries.is_empty());
    }

    #[test]
    fn queries_that_nobody_answers_fill_no_memory() {
        let mut figures = Figures::default();
        let open: Vec<_> = (0..QUERIES).map(|_| figures.begin(|_| 1)).collect();
        let mut asked = false;
        let mut more = figures.begin(|_| {
            asked = true;
            1
        });
        assert!(!asked);
        assert_eq!(
            more.try_recv(),
            Err(mpsc::error::TryRecvError::Disconnected)
        );
        drop(open);
        let _next = figures.begin(|_| 1);
        assert_eq!(
            figures.queries.len(),
            1,
            "those that were given up are forgotten"
        );
    }
}
