//! Loads, stores, atomics and copies in C.

use super::Writer;
use super::operand::{Kind, Type, U32, U64};
use crate::ptx::{Instruction, Operand};

impl Writer {
    pub(super) fn memory(&mut self, one: &Instruction) -> Result<String, String> {
        match one.parts[0].as_str() {
            "ld" => self.loaded(one),
            "st" => self.stored(one),
            "cp" => self.copied(one),
            _ => self.atomic(one),
        }
    }

    /// A checked place for `bytes` bytes, as a pointer.
    fn place(&self, one: &Instruction, at: &Operand, bytes: u32) -> Result<String, String> {
        let (at, line) = (self.address(at)?, one.line);
        let is_shared = one.parts.iter().any(|part| part.starts_with("shared"));
        Ok(match is_shared {
            true => format!("shared_at(t, {line}, {at}, {bytes})"),
            false => format!("memory_at(t, {line}, {at}, {bytes})"),
        })
    }

    fn loaded(&mut self, one: &Instruction) -> Result<String, String> {
        let [to, from] = &one.operands[..] else { return Err("its operands".into()) };
        let (kind, count) = form(one)?;
        let bytes = kind.bits / 8 * count;
        let place = self.place(one, from, bytes)?;
        let looks = one.has("volatile") || one.has("relaxed") || one.has("acquire");
        let mut c = String::from("{ ");
        if looks {
            self.looks = true;
            c += &format!("t->calls->look(t, {}); ", one.line);
        }
        // What others write meanwhile is seen whole.
        c += &match (looks, bytes) {
            (true, 16) => format!("Two in; in = *(volatile Two *){place}; "),
            (true, _) => {
                let c = Type { kind: Kind::Bits, bits: 8 * bytes }.c();
                format!("{c} in = *(volatile {c} *){place}; ")
            }
            (false, _) => {
                let c = kind.c();
                format!("{c} in[{count}]; memcpy(in, {place}, {bytes}); ")
            }
        };
        if looks {
            let own = kind.c();
            c += &format!("{own} each[{count}]; memcpy(each, &in, {bytes}); ");
        }
        let from = if looks { "each" } else { "in" };
        for (i, to) in each(to).iter().enumerate() {
            c += &self.assign(to, kind, &format!("{from}[{i}]"))?;
        }
        Ok(c + " }")
    }

    fn stored(&self, one: &Instruction) -> Result<String, String> {
        let [to, from] = &one.operands[..] else { return Err("its operands".into()) };
        let (kind, count) = form(one)?;
        let bytes = kind.bits / 8 * count;
        let place = self.place(one, to, bytes)?;
        let own = kind.c();
        let mut c = format!("{{ {own} out[{count}] = {{");
        for from in each(from) {
            c += &self.value(from, kind)?;
            c += ", ";
        }
        c += "}; ";
        let looks = one.has("volatile") || one.has("relaxed") || one.has("release");
        c += &match (looks, bytes) {
            (false, _) => format!("memcpy({place}, out, {bytes}); }}"),
            (true, 16) => {
                format!("Two all; memcpy(&all, out, 16); *(volatile Two *){place} = all; }}")
            }
            (true, _) => {
                let c = Type { kind: Kind::Bits, bits: 8 * bytes }.c();
                format!("{c} all; memcpy(&all, out, {bytes}); *(volatile {c} *){place} = all; }}")
            }
        };
        Ok(c)
    }

    /// `atom` and `red` of integers.
    fn atomic(&mut self, one: &Instruction) -> Result<String, String> {
        let (kind, _) = form(one)?;
        let (to, rest) = match (&one.operands[..], one.parts[0].as_str()) {
            ([to, rest @ ..], "atom") => (to.clone(), rest),
            (rest, _) => (Operand::Nothing, rest),
        };
        let ([at, value, ..], false) = (rest, kind.is_float() || kind.bits < 32) else {
            return Err("a form of it".into());
        };
        self.looks |= !one.parts.iter().any(|part| part.starts_with("shared"));
        let place = self.place(one, at, kind.bits / 8)?;
        let (value, c) = (self.value(value, kind)?, kind.c());
        let place = format!("({c} *){place}");
        let parts = ["add", "and", "or", "xor", "exch"];
        let found = match parts.iter().find(|part| one.has(part)) {
            Some(&"exch") => format!("__atomic_exchange_n({place}, {value}, __ATOMIC_SEQ_CST)"),
            Some(how) => format!("__atomic_fetch_{how}({place}, {value}, __ATOMIC_SEQ_CST)"),
            None => return Err("a form of it".into()),
        };
        self.assign(&to, kind, &found)
    }

    /// `cp.async` and `cp.async.bulk`.
    fn copied(&self, one: &Instruction) -> Result<String, String> {
        let line = one.line;
        if one.has("bulk") {
            let [to, from, bytes, barrier] = &one.operands[..] else {
                return Err("a form of it".into());
            };
            if !one.parts.iter().any(|part| part.starts_with("mbarrier")) {
                return Err("a form of it".into());
            }
            let (to, from, at) = (self.address(to)?, self.address(from)?, self.address(barrier)?);
            let bytes = self.value(bytes, U32)?;
            return Ok(format!("t->calls->bulk(t, {line}, {to}, {from}, {bytes}, {at});"));
        }
        match (one.parts.get(2).map(String::as_str), &one.operands[..]) {
            (Some("commit_group"), []) => Ok("t->calls->commit(t);".into()),
            (Some("wait_group"), [left]) => {
                Ok(format!("t->calls->wait_copies(t, {});", self.value(left, U32)?))
            }
            (Some("wait_all"), []) => Ok("t->calls->wait_copies(t, UINT32_MAX);".into()),
            (Some("ca" | "cg"), [to, from, bytes, given @ ..]) => {
                let (to, from) = (self.address(to)?, self.address(from)?);
                let bytes = self.value(bytes, U32)?;
                let given = match given {
                    [] => bytes.clone(),
                    [given] => self.value(given, U32)?,
                    _ => return Err("its operands".into()),
                };
                Ok(format!("t->calls->copy(t, {line}, {to}, {from}, {bytes}, {given});"))
            }
            _ => Err("a form of it".into()),
        }
    }
}

/// The type of what is loaded or stored, and how many of it.
fn form(one: &Instruction) -> Result<(Type, u32), String> {
    let last = one.parts.last().map_or("", String::as_str);
    let kind = Type::of(last).filter(|kind| *kind != Type { kind: Kind::Float, bits: 64 });
    let kind = kind.ok_or_else(|| format!("`{last}`"))?;
    let count = [("v2", 2), ("v4", 4)].into_iter().find(|(part, _)| one.has(part));
    let count = count.map_or(1, |(_, count)| count);
    if kind.bits / 8 * count > U64.bits / 4 {
        return Err("more than 16 bytes".into());
    }
    Ok((kind, count))
}

/// One operand or those of a vector.
fn each(operand: &Operand) -> &[Operand] {
    match operand {
        Operand::Many(all) => all,
        one => std::slice::from_ref(one),
    }
}
