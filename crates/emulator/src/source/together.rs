//! What threads do together, in C: calls that let others run.

use super::Writer;
use super::operand::{Kind, Type, U32, U64};
use crate::ptx::{Instruction, Operand};

const PREDICATE: Type = Type { kind: Kind::Predicate, bits: 1 };

impl Writer {
    pub(super) fn together(&self, one: &Instruction) -> Result<String, String> {
        match one.parts[0].as_str() {
            "bar" | "barrier" => self.barrier(one),
            "shfl" => self.shuffled(one),
            "vote" => self.voted(one),
            "mma" => self.product(one),
            "mbarrier" => self.phase(one),
            "wgmma" => self.wide(one),
            _ => Err("it at all".into()),
        }
    }

    fn barrier(&self, one: &Instruction) -> Result<String, String> {
        let line = one.line;
        if one.has("warp") {
            let [mask] = &one.operands[..] else { return Err("its operands".into()) };
            return Ok(format!("t->calls->warp(t, {line}, {});", self.value(mask, U32)?));
        }
        if one.has("red") {
            let (Some(how), [to, id, rest @ .., value]) =
                (["or", "and", "popc"].iter().position(|part| one.has(part)), &one.operands[..])
            else {
                return Err("a form of it".into());
            };
            let (id, value) = (self.value(id, U32)?, self.value(value, PREDICATE)?);
            let count = rest.first().map_or(Ok("0".into()), |count| self.value(count, U32))?;
            let call =
                format!("t->calls->barrier_reduce(t, {line}, {how}, {id}, {count}, {value})");
            let kind = if how == 2 { U32 } else { PREDICATE };
            return self.assign(to, kind, &call);
        }
        let call = match (one.has("sync"), one.has("arrive")) {
            (true, _) => "barrier",
            (_, true) => "arrive",
            _ => return Err("a form of it".into()),
        };
        let Some((id, rest)) = one.operands.split_first() else {
            return Err("its operands".into());
        };
        let id = self.value(id, U32)?;
        let count = rest.first().map_or(Ok("0".into()), |count| self.value(count, U32))?;
        Ok(format!("t->calls->{call}(t, {line}, {id}, {count});"))
    }

    fn shuffled(&self, one: &Instruction) -> Result<String, String> {
        let [to, value, by, within, mask] = &one.operands[..] else {
            return Err("its operands".into());
        };
        let how = ["up", "down", "bfly", "idx"].iter().position(|part| one.has(part));
        let how = how.ok_or("a form of it")?;
        let (value, by) = (self.value(value, U32)?, self.value(by, U32)?);
        let (within, mask) = (self.value(within, U32)?, self.value(mask, U32)?);
        let line = one.line;
        let call = format!("t->calls->shuffle(t, {line}, {how}, {value}, {by}, {within}, {mask})");
        match to {
            Operand::Both(to, is_in) => {
                let to = self.assign(to, U32, &call)?;
                Ok(format!("{{ {to} {} }}", self.assign(is_in, PREDICATE, "t->out[1]")?))
            }
            to => self.assign(to, U32, &call),
        }
    }

    fn voted(&self, one: &Instruction) -> Result<String, String> {
        let [to, value, mask] = &one.operands[..] else { return Err("its operands".into()) };
        let how = ["any", "all", "uni", "ballot"].iter().position(|part| one.has(part));
        let how = how.ok_or("a form of it")?;
        let (value, mask) = (self.value(value, PREDICATE)?, self.value(mask, U32)?);
        let call = format!("t->calls->vote(t, {}, {how}, {value}, {mask})", one.line);
        self.assign(to, if how == 3 { U32 } else { PREDICATE }, &call)
    }

    fn product(&self, one: &Instruction) -> Result<String, String> {
        let depth = match one.name().as_str() {
            "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32" => 16,
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" => 32,
            _ => return Err("a form of it".into()),
        };
        let [Operand::Many(to), Operand::Many(left), Operand::Many(right), Operand::Many(sums)] =
            &one.operands[..]
        else {
            return Err("its operands".into());
        };
        let (to_count, given) = (to.len(), [left.len(), right.len(), sums.len()]);
        if to_count != 4 || given != [depth / 8, depth / 16, 4] {
            return Err("its operands".into());
        }
        let mut c = String::from("{ ");
        for (first, operands) in [(0, left), (4, right), (6, sums)] {
            for (i, operand) in operands.iter().enumerate() {
                c += &format!("t->in[{}] = {}; ", first + i, self.value(operand, U32)?);
            }
        }
        c += &format!("t->calls->product(t, {}, {depth}); ", one.line);
        for (i, to) in to.iter().enumerate() {
            c += &self.assign(to, U32, &format!("t->out[{i}]"))?;
        }
        Ok(c + " }")
    }

    fn phase(&self, one: &Instruction) -> Result<String, String> {
        let line = one.line;
        match (one.parts.get(1).map(String::as_str), &one.operands[..]) {
            (Some("init"), [at, count]) => {
                let (at, count) = (self.address(at)?, self.value(count, U32)?);
                Ok(format!("t->calls->phase_begin(t, {line}, {at}, {count});"))
            }
            (Some("arrive"), [Operand::Nothing, at, rest @ ..]) => {
                let bytes = match (one.has("expect_tx"), rest) {
                    (true, [bytes]) => self.value(bytes, U32)?,
                    (false, []) => "0".into(),
                    _ => return Err("a form of it".into()),
                };
                let at = self.address(at)?;
                Ok(format!("t->calls->phase_arrive(t, {line}, {at}, {bytes});"))
            }
            (Some("try_wait"), [to, at, parity]) if one.has("parity") => {
                let (at, parity) = (self.address(at)?, self.value(parity, U32)?);
                let call = format!("t->calls->phase_wait(t, {line}, {at}, {parity})");
                self.assign(to, PREDICATE, &call)
            }
            _ => Err("a form of it".into()),
        }
    }

    fn wide(&self, one: &Instruction) -> Result<String, String> {
        let line = one.line;
        match (one.name().as_str(), &one.operands[..]) {
            // A product is done when it is come to.
            ("wgmma.fence.sync.aligned" | "wgmma.commit_group.sync.aligned", [])
            | ("wgmma.wait_group.sync.aligned", [_]) => Ok(";".into()),
            (
                "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8",
                [Operand::Many(sums), Operand::Many(left), right, adds],
            ) if sums.len() == 32 && left.len() == 4 => {
                let mut c = String::from("{ uint32_t sums[32], left[4]; ");
                for (i, sum) in sums.iter().enumerate() {
                    c += &format!("sums[{i}] = {}; ", self.value(sum, U32)?);
                }
                for (i, left) in left.iter().enumerate() {
                    c += &format!("left[{i}] = {}; ", self.value(left, U32)?);
                }
                let (right, adds) = (self.value(right, U64)?, self.value(adds, PREDICATE)?);
                c += &format!("t->calls->wide(t, {line}, sums, left, {right}, {adds}); ");
                for (i, sum) in sums.iter().enumerate() {
                    c += &self.assign(sum, U32, &format!("sums[{i}]"))?;
                }
                Ok(c + " }")
            }
            _ => Err("a form of it".into()),
        }
    }
}
