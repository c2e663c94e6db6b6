//! `mov`, `cvt` and `cvta` in C.

use super::Writer;
use super::operand::{Kind, Type};
use crate::ptx::{Instruction, Operand};

impl Writer {
    pub(super) fn convert(&self, one: &Instruction) -> Result<String, String> {
        let [to, from] = &one.operands[..] else { return Err("its operands".into()) };
        let last = one.parts.last().map_or("", String::as_str);
        let kind = Type::of(last).ok_or_else(|| format!("`{last}`"))?;
        match one.parts[0].as_str() {
            "mov" => self.moved(to, from, kind),
            "cvta" => self.generic(one, to, from),
            _ => self.converted(one, to, from, kind),
        }
    }

    /// A value, or parts of one to and from registers.
    fn moved(&self, to: &Operand, from: &Operand, kind: Type) -> Result<String, String> {
        match (to, from) {
            (Operand::Many(to), from) => {
                let each = Type { kind: Kind::Bits, bits: kind.bits / to.len().max(1) as u32 };
                let whole = self.value(from, kind.unsigned())?;
                let mut c = format!("{{ uint64_t whole = {whole}; ");
                for (i, to) in to.iter().enumerate() {
                    let part = format!("({})(whole >> {})", each.c(), i as u32 * each.bits);
                    c += &self.assign(to, each, &part)?;
                }
                Ok(c + " }")
            }
            (to, Operand::Many(from)) => {
                let each = Type { kind: Kind::Bits, bits: kind.bits / from.len().max(1) as u32 };
                let mut parts = Vec::new();
                for (i, from) in from.iter().enumerate() {
                    let part = self.value(from, each)?;
                    parts.push(format!("(uint64_t){part} << {}", i as u32 * each.bits));
                }
                self.assign(to, kind, &parts.join(" | "))
            }
            _ => self.assign(to, kind, &self.value(from, kind)?),
        }
    }

    /// Addresses of shared memory lie apart from all others.
    fn generic(&self, one: &Instruction, to: &Operand, from: &Operand) -> Result<String, String> {
        let kind = super::operand::U64;
        let value = self.value(from, kind)?;
        let value = match (one.has("shared"), one.has("to")) {
            (false, _) => value,
            (true, false) => format!("{value} + (uint64_t)(uintptr_t)t->shared"),
            (true, true) => format!("{value} - (uint64_t)(uintptr_t)t->shared"),
        };
        self.assign(to, kind, &value)
    }

    fn converted(
        &self,
        one: &Instruction,
        to: &Operand,
        from: &Operand,
        source: Type,
    ) -> Result<String, String> {
        let own = one.parts.len().checked_sub(2).map_or("", |at| one.parts[at].as_str());
        let kind = Type::of(own).ok_or_else(|| format!("`{own}`"))?;
        if one.has("sat") || one.has("ftz") || kind.bits == 64 && kind.is_float() {
            return Err("a form of it".into());
        }
        let half = Type { kind: Kind::Bits, bits: 16 };
        match ((kind.kind, kind.bits), (source.kind, source.bits)) {
            ((Kind::Float, 32), (Kind::Float, 16)) => {
                let value = self.value(from, half)?;
                self.assign(to, kind, &format!("of_half({value})"))
            }
            ((Kind::Float, 16), (Kind::Float, 32)) if one.has("rn") => {
                let value = self.value(from, source)?;
                self.assign(to, half, &format!("half_of({value})"))
            }
            ((Kind::Float, 32), (Kind::Signed | Kind::Bits, _)) if one.has("rn") => {
                let value = self.value(from, source)?;
                self.assign(to, kind, &format!("(float){value}"))
            }
            ((Kind::Signed | Kind::Bits, 32), (Kind::Float, 32)) => {
                let round =
                    [("rni", "nearest"), ("rzi", "to_zero"), ("rmi", "down"), ("rpi", "up")];
                let round = round.iter().find(|(part, _)| one.has(part));
                let round = round.ok_or("how it rounds")?.1;
                let value = self.value(from, source)?;
                let into = if kind.kind == Kind::Signed { "s32_of" } else { "u32_of" };
                self.assign(to, kind, &format!("{into}({round}({value}))"))
            }
            ((Kind::Float, 32), (Kind::Float, 32)) => {
                let round =
                    [("rni", "nearest"), ("rzi", "to_zero"), ("rmi", "down"), ("rpi", "up")];
                let round = round.iter().find(|(part, _)| one.has(part));
                let round = round.ok_or("how it rounds")?.1;
                let value = self.value(from, source)?;
                self.assign(to, kind, &format!("one_nan({round}({value}))"))
            }
            ((Kind::Signed | Kind::Bits, _), (Kind::Signed | Kind::Bits, _)) => {
                let value = self.value(from, source)?;
                self.assign(to, kind, &format!("({}){value}", kind.c()))
            }
            _ => Err("a form of it".into()),
        }
    }
}
