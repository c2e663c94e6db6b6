//! Requests between two epochs: they wait for the next one, for so long, and then fail.

use std::time::Duration;

use sched::{Carried, Event, Failure, RequestId};

use super::Now;

/// Holds requests while the ring is down.
#[derive(Debug)]
pub struct Patience {
    patience: Duration,
    /// When the patience with the last break ends, until something came of it.
    until: Option<Now>,
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    replies: Carried,
    until: Now,
    /// Why the epoch ended.
    reason: String,
}

impl Patience {
    /// Holds for `patience` after a break.
    pub fn new(patience: Duration) -> Self {
        Self { patience, until: None, held: None }
    }

    /// Takes over what an epoch left. A ring that broke again before it gave a token
    /// (`progressed`) gets no more time than the first break did.
    pub fn hold(&mut self, now: Now, replies: Carried, reason: &str, progressed: bool) {
        let until = self.until.filter(|_| !progressed).unwrap_or(now + self.patience);
        self.until = Some(until);
        self.held = Some(Held { replies, until, reason: reason.into() });
    }

    /// Another reason why the ring is down.
    pub fn because(&mut self, reason: &str) {
        if let Some(held) = &mut self.held {
            held.reason = reason.into();
        }
    }

    /// Takes a request back.
    pub fn cancel(&mut self, id: RequestId) {
        if let Some(held) = &mut self.held {
            held.replies.cancel(id);
        }
    }

    /// When what is held has waited long enough.
    pub fn deadline(&self) -> Option<Now> {
        self.held.as_ref().map(|held| held.until)
    }

    /// What still waits, for a ring that serves again. Where nothing does any more, the break is
    /// over: requests to come have their own time.
    pub fn take(&mut self) -> Option<Carried> {
        let replies = self.held.take().map(|held| held.replies);
        if replies.as_ref().is_none_or(Carried::is_empty) {
            self.until = None;
        }
        replies
    }

    /// Ends the wait for nothing.
    pub fn fail(&mut self, failure: &Failure) -> Vec<(RequestId, Event)> {
        self.take().map(|replies| replies.fail(failure)).unwrap_or_default()
    }

    /// The time is up: all fail, with the reason.
    pub fn expire(&mut self) -> Vec<(RequestId, Event)> {
        let failed = |held: Held| held.replies.fail(&Failure::Ring(held.reason));
        self.held.take().map(failed).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use sched::{Limits, Request, Scheduler};

    use super::*;

    fn requests(count: u64) -> Carried {
        let limits = Limits {
            streams_max: 4,
            queue_max: 4,
            chunk_rows_max: 8,
            round_rows_max: 8,
            context_max: 64,
            pages: 4,
            depth: 1,
        };
        let mut sched = Scheduler::new(limits);
        for id in 1..=count {
            let request = Request { prompt: vec![1], ..Request::default() };
            assert_eq!(sched.submit(RequestId(id), request), Ok(()));
        }
        sched.carry()
    }

    fn s(seconds: u64) -> Now {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_ring_that_breaks_again_before_a_token_gets_no_new_time() {
        let mut patience = Patience::new(s(30));
        patience.hold(s(100), requests(1), "rank 1", false);
        assert_eq!(patience.deadline(), Some(s(130)));
        assert_eq!(patience.take().map(|replies| replies.len()), Some(1));
        patience.hold(s(110), requests(1), "rank 1", false);
        assert_eq!(patience.deadline(), Some(s(130)));
        patience.take();
        patience.hold(s(120), requests(1), "rank 1", true);
        assert_eq!(patience.deadline(), Some(s(150)));
        assert_eq!(patience.expire().len(), 1);
        assert_eq!(patience.deadline(), None);
    }

    #[test]
    fn a_break_that_nobody_waits_for_any_more_takes_no_time_from_later_requests() {
        let mut patience = Patience::new(s(30));
        patience.hold(s(100), requests(0), "rank 1", false);
        patience.take();
        patience.hold(s(4_000), requests(1), "rank 1", false);
        assert_eq!(patience.deadline(), Some(s(4_030)));
        assert_eq!(patience.expire().len(), 1);
        assert!(patience.take().is_none());
        patience.hold(s(5_000), requests(1), "rank 1", false);
        assert_eq!(patience.deadline(), Some(s(5_030)));
    }
}
