//! Figures of all frontends. A client reaches one frontend, and that frontend asks here for the
//! figures of all.

use std::collections::BTreeMap;

use lockstep_proto::pb::lockstep::FrontFigures;
use tokio::sync::mpsc;

/// Most queries that wait at once. Queries end within the asker's time limit, so there are this
/// many only if ports are flooded with scrapes.
const QUERIES: usize = 64;

/// Queries that are not fully answered.
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
    /// Begins a query. `ask` gets the query's number, puts it to the frontends and returns
    /// their number. The answers come to the returned receiver, which ends after the last.
    pub fn begin(&mut self, ask: impl FnOnce(u64) -> usize) -> mpsc::Receiver<FrontFigures> {
        // An asker that gave up has dropped its receiver.
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

    /// Takes one answer; an answer that comes too late is dropped.
    pub fn answer(&mut self, query: u64, figures: FrontFigures) {
        let Some(open) = self.queries.get_mut(&query) else {
            return;
        };
        // There is room for all answers; the asker may have left.
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
