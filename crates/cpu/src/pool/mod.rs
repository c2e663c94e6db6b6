//! A fork-join pool: persistent workers that spin briefly, then park.
//!
//! A job is a function over the indices `0 .. count`. Each thread gets a run of neighbours in a
//! seat of its own and takes them in order; when it has none left it moves the later half of
//! another's run to its own seat, the caller included: a worker that the system has put aside
//! delays nothing but the index it holds. Runs let every thread read memory in one stream, and
//! threads meet on a cache line only where work is handed over: a line's way between cores costs as
//! much as a small index. The fast path takes no lock and allocates nothing. What an index computes
//! depends on the index alone, so results never depend on who ran it.

mod job;
mod seat;
mod sync;
mod workers;

pub(crate) use workers::Pool;

#[cfg(test)]
mod tests;
