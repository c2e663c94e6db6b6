//! A plan's bytes.

use std::collections::BTreeSet;

use arith::base::{Generation, StreamId};

use crate::bytes::{PREFIX_BYTES, Tag, Take, put_prefix, take_prefix};
use crate::error::{Fault, WireError};
use crate::limit::{KEEPS_MAX, PLAN_BYTES_MAX, ROUND_ROWS_MAX};
use crate::plan::{Entry, Keep, KeepOp, Mode, Op, Plan, ROOT, Want};

const HEAD_BYTES: usize = PREFIX_BYTES + 16;
const ENTRY_BYTES: usize = 28;
const KEEP_BYTES: usize = 24;
/// Entry flag: a u16 parent a row follows.
const TREE: u8 = 1;
/// Entry flag: a u32 token id a row follows.
const TOKENS: u8 = 2;

impl Plan {
    /// The payload, prefix included.
    ///
    /// # Errors
    /// Those of [`Plan::check`].
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        self.check()?;
        let mut out = Vec::with_capacity(self.encoded_bytes());
        put_prefix(&mut out, Tag::Plan);
        for count in [self.entries.len(), self.rows(), self.cuts.len()] {
            // check() has bounded the whole payload, and the rows.
            out.extend((count as u32).to_le_bytes());
        }
        out.extend([self.mode as u8, 0]);
        out.extend((self.keeps.len() as u16).to_le_bytes());
        for entry in &self.entries {
            entry.put_into(&mut out);
        }
        out.extend(self.cuts.iter().flat_map(|cut| cut.to_le_bytes()));
        for keep in &self.keeps {
            keep.put_into(&mut out);
        }
        for parents in self.entries.iter().filter_map(|entry| entry.parents.as_ref()) {
            out.extend(parents.iter().flat_map(|parent| parent.to_le_bytes()));
        }
        for tokens in self.entries.iter().filter_map(|entry| entry.tokens.as_ref()) {
            out.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        }
        Ok(out)
    }

    /// Reads the payload, prefix included, and checks it.
    ///
    /// # Errors
    /// The prefix's, `Truncated`, `Trailing`, `TooLarge`, `BadReserved`, `BadMode`, `BadOp`,
    /// `BadFlags`, `BadWant`, `BadKeep`, `OtherRows`, and those of [`Plan::check`].
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut take = Take::new("plan", payload);
        take.at_most("payload", PLAN_BYTES_MAX as u64, payload.len() as u64)?;
        match take_prefix(&mut take)? {
            Tag::Plan => {}
            other => {
                let fault = take.fault("message", "plan", other.name());
                return Err(WireError::OtherMessage(fault));
            }
        }
        let (streams, rows, cuts) = (take.u32("streams")?, take.u32("rows")?, take.u32("cuts")?);
        let mode = match take.u8("mode")? {
            0 => Mode::Window,
            1 => Mode::Prompt,
            other => return Err(WireError::BadMode(take.fault("mode", "0 or 1", other))),
        };
        take.zeros::<1>("reserved")?;
        let keeps = usize::from(take.u16("keeps")?);
        take.at_most("keeps", KEEPS_MAX as u64, keeps as u64)?;
        let (streams, cuts) = (streams as usize, cuts as usize);
        take.fits("streams", streams.saturating_mul(ENTRY_BYTES))?;
        take.fits("cuts", cuts.saturating_mul(4))?;
        take.fits("keeps", keeps * KEEP_BYTES)?;
        let mut entries = Vec::with_capacity(streams);
        for _ in 0..streams {
            entries.push(Entry::take_from(&mut take)?);
        }
        let total: u64 = entries.iter().map(|entry: &Entry| u64::from(entry.rows)).sum();
        if u64::from(rows) != total {
            return Err(WireError::OtherRows(take.fault("rows", total, rows)));
        }
        let cuts = (0..cuts).map(|_| take.u32("cuts")).collect::<Result<_, _>>()?;
        let keeps = (0..keeps).map(|_| Keep::take_from(&mut take)).collect::<Result<_, _>>()?;
        take_windows(&mut take, &mut entries)?;
        take.end()?;
        let plan = Self { mode, entries, cuts, keeps };
        plan.check()?;
        Ok(plan)
    }

    /// Whether `self` is what comes back of `sent`: the same, but a stage may have marked a keep
    /// that it could not do.
    pub fn echoes(&self, sent: &Self) -> bool {
        let keep = |(ours, theirs): (&Keep, &Keep)| {
            Keep { held: theirs.held, ..*ours } == *theirs && (theirs.held || !ours.held)
        };
        self.mode == sent.mode
            && self.entries == sent.entries
            && self.cuts == sent.cuts
            && self.keeps.len() == sent.keeps.len()
            && self.keeps.iter().zip(&sent.keeps).all(keep)
    }

    /// The rules that a plan keeps whatever the streams' states are.
    ///
    /// # Errors
    /// `BadOrder` for ids, `BadOpen`, `BadResume`, `NoSuchKeep`, `OtherRows` for a close or cancel
    /// with rows or positions past u32, `BadParent`, `BadCuts`, `TooLarge`.
    pub fn check(&self) -> Result<(), WireError> {
        for pair in self.entries.windows(2) {
            if pair[0].id >= pair[1].id {
                let expected = format!("an id above {}", pair[0].id);
                return Err(WireError::BadOrder(Fault::new("plan.id", expected, pair[1].id)));
            }
        }
        let restores = self.restores();
        for entry in &self.entries {
            entry.check()?;
            if entry.op == Op::Resume && !restores.contains(&(entry.id, entry.first)) {
                let expected = format!("a restore of stream {} at {}", entry.id, entry.first);
                return Err(WireError::NoSuchKeep(Fault::new("plan.keeps", expected, "none")));
            }
        }
        let rows: u64 = self.entries.iter().map(|entry| u64::from(entry.rows)).sum();
        let bounds = [
            ("plan.rows", rows, u64::from(ROUND_ROWS_MAX)),
            ("plan.keeps", self.keeps.len() as u64, KEEPS_MAX as u64),
            ("plan.payload", self.encoded_bytes() as u64, PLAN_BYTES_MAX as u64),
        ];
        for (field, found, max) in bounds {
            if found > max {
                let expected = format!("at most {max}");
                return Err(WireError::TooLarge(Fault::new(field, expected, found)));
            }
        }
        self.check_cuts(rows)
    }

    fn check_cuts(&self, rows: u64) -> Result<(), WireError> {
        let mut last = 0;
        for &cut in &self.cuts {
            if cut <= last || u64::from(cut) >= rows {
                let expected = format!("above {last} and below {rows}");
                return Err(WireError::BadCuts(Fault::new("plan.cuts", expected, cut)));
            }
            last = cut;
        }
        Ok(())
    }

    /// The states that the plan restores: stream and position.
    fn restores(&self) -> BTreeSet<(StreamId, u32)> {
        let restores = self.keeps.iter().filter(|keep| keep.op == KeepOp::Restore);
        restores.map(|keep| (keep.stream, keep.position)).collect()
    }

    fn encoded_bytes(&self) -> usize {
        let rows = self.entries.iter().map(|entry| {
            2 * entry.parents.as_ref().map_or(0, Vec::len)
                + 4 * entry.tokens.as_ref().map_or(0, Vec::len)
        });
        HEAD_BYTES
            + ENTRY_BYTES * self.entries.len()
            + 4 * self.cuts.len()
            + KEEP_BYTES * self.keeps.len()
            + rows.sum::<usize>()
    }
}

/// Reads parents, then token ids, of the windows whose flags announce them.
fn take_windows(take: &mut Take<'_>, entries: &mut [Entry]) -> Result<(), WireError> {
    for entry in entries.iter_mut() {
        let (rows, Some(parents)) = (entry.rows as usize, &mut entry.parents) else {
            continue;
        };
        take.fits("parents", rows.saturating_mul(2))?;
        *parents = (0..rows).map(|_| take.u16("parents")).collect::<Result<_, _>>()?;
    }
    for entry in entries.iter_mut() {
        let (rows, Some(tokens)) = (entry.rows as usize, &mut entry.tokens) else {
            continue;
        };
        take.fits("tokens", rows.saturating_mul(4))?;
        *tokens = (0..rows).map(|_| take.u32("tokens")).collect::<Result<_, _>>()?;
    }
    Ok(())
}

impl Entry {
    fn put_into(&self, out: &mut Vec<u8>) {
        let flags = if self.parents.is_some() { TREE } else { 0 }
            | if self.tokens.is_some() { TOKENS } else { 0 };
        out.extend(self.id.0.to_le_bytes());
        out.extend([self.op as u8, flags, self.want as u8, 0]);
        for value in [self.first, self.rows, self.accepted, self.resume, self.generation.0] {
            out.extend(value.to_le_bytes());
        }
    }

    /// Reads the 28 bytes; parents and tokens, which come later, stay empty.
    fn take_from(take: &mut Take<'_>) -> Result<Self, WireError> {
        let id = StreamId(take.u32("id")?);
        let op = match take.u8("op")? {
            1 => Op::Open,
            2 => Op::Continue,
            3 => Op::Close,
            4 => Op::Cancel,
            5 => Op::Resume,
            other => return Err(WireError::BadOp(take.fault("op", "1..5", other))),
        };
        let flags = take.u8("flags")?;
        if flags & !(TREE | TOKENS) != 0 {
            return Err(WireError::BadFlags(take.fault("flags", "at most 3", flags)));
        }
        let want = match take.u8("want")? {
            0 => Want::None,
            1 => Want::Last,
            2 => Want::All,
            other => return Err(WireError::BadWant(take.fault("want", "0..2", other))),
        };
        take.zeros::<1>("reserved")?;
        Ok(Self {
            id,
            op,
            want,
            first: take.u32("first")?,
            rows: take.u32("rows")?,
            accepted: take.u32("accepted")?,
            resume: take.u32("resume")?,
            generation: Generation(take.u32("generation")?),
            parents: (flags & TREE != 0).then(Vec::new),
            tokens: (flags & TOKENS != 0).then(Vec::new),
        })
    }

    fn check(&self) -> Result<(), WireError> {
        let fault = |name, expected: u32, found: u32| Fault::new(self.field(name), expected, found);
        if self.op == Op::Open {
            let zeros = [
                ("first", self.first),
                ("accepted", self.accepted),
                ("generation", self.generation.0),
            ];
            for (name, found) in zeros {
                if found != 0 {
                    return Err(WireError::BadOpen(fault(name, 0, found)));
                }
            }
        }
        let resumes = self.op == Op::Resume;
        if resumes && self.resume == 0 {
            let fault = Fault::new(self.field("resume"), "1 or more", 0);
            return Err(WireError::BadResume(fault));
        }
        let resume = if resumes { self.first } else { 0 };
        if self.resume != resume {
            return Err(WireError::BadResume(fault("resume", resume, self.resume)));
        }
        if matches!(self.op, Op::Close | Op::Cancel) && self.rows != 0 {
            return Err(WireError::OtherRows(fault("rows", 0, self.rows)));
        }
        self.check_window()
    }

    fn check_window(&self) -> Result<(), WireError> {
        if self.first.checked_add(self.rows).is_none() {
            let expected = format!("at most {}", u32::MAX - self.first);
            let fault = Fault::new(self.field("rows"), expected, self.rows);
            return Err(WireError::OtherRows(fault));
        }
        let lengths = [
            ("parents", self.parents.as_ref().map(Vec::len)),
            ("tokens", self.tokens.as_ref().map(Vec::len)),
        ];
        for (name, length) in lengths {
            if let Some(found) = length.filter(|&length| length != self.rows as usize) {
                let fault = Fault::new(self.field(name), self.rows, found);
                return Err(WireError::OtherRows(fault));
            }
        }
        for (row, &parent) in self.parents.iter().flatten().enumerate() {
            if parent != ROOT && usize::from(parent) >= row {
                let expected = format!("below row {row}");
                let fault = Fault::new(self.field("parents"), expected, parent);
                return Err(WireError::BadParent(fault));
            }
        }
        Ok(())
    }

    fn field(&self, name: &str) -> String {
        format!("plan.stream {}.{name}", self.id)
    }
}

impl Keep {
    fn put_into(&self, out: &mut Vec<u8>) {
        out.extend(self.key.to_le_bytes());
        out.extend(self.stream.0.to_le_bytes());
        out.extend(self.position.to_le_bytes());
        out.extend([self.op as u8, u8::from(self.held), 0, 0, 0, 0, 0, 0]);
    }

    fn take_from(take: &mut Take<'_>) -> Result<Self, WireError> {
        let key = take.u64("key")?;
        let stream = StreamId(take.u32("stream")?);
        let position = take.u32("position")?;
        let op = match take.u8("keep")? {
            1 => KeepOp::Save,
            2 => KeepOp::Drop,
            3 => KeepOp::Restore,
            other => return Err(WireError::BadKeep(take.fault("keep", "1..3", other))),
        };
        let held = match take.u8("status")? {
            0 => false,
            1 => true,
            other => return Err(WireError::BadKeep(take.fault("status", "0 or 1", other))),
        };
        take.zeros::<6>("reserved")?;
        Ok(Self { key, stream, position, op, held })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_may_say_that_a_keep_failed_and_nothing_else() {
        let (key, stream) = (1, StreamId(2));
        let keep = Keep { key, stream, position: 3, op: KeepOp::Save, held: true };
        let with = |keep| Plan { keeps: vec![keep], ..Plan::default() };
        let (sent, failed) = (with(keep), with(Keep { held: false, ..keep }));
        assert!(sent.echoes(&sent) && failed.echoes(&sent));
        assert!(!sent.echoes(&failed), "no rank makes good what an earlier one could not do");
        assert!(!with(Keep { position: 4, ..keep }).echoes(&sent));
        assert!(!Plan { mode: Mode::Prompt, ..sent.clone() }.echoes(&sent));
        assert!(!Plan::default().echoes(&sent));
    }
}
