//! Arithmetic in C.

use super::Writer;
use super::operand::{Kind, Type, U32};
use crate::ptx::{Instruction, Operand};

impl Writer {
    pub(super) fn compute(&self, one: &Instruction) -> Result<String, String> {
        let last = one.parts.last().map_or("", String::as_str);
        let kind = Type::of(last).ok_or_else(|| format!("`{last}`"))?;
        if kind.is_float() && kind.bits != 32 || one.has("sat") || one.has("cc") {
            return Err("a form of it".into());
        }
        if one.parts[0] == "setp" {
            return self.compared(one, kind);
        }
        let Some((to, from)) = one.operands.split_first() else {
            return Err("its operands".into());
        };
        if kind.is_float() && one.parts[0] != "selp" {
            return self.float(one, to, from);
        }
        if kind.kind == Kind::Predicate {
            return self.logic(one, to, from);
        }
        self.integer(one, to, from, kind)
    }

    fn float(&self, one: &Instruction, to: &Operand, from: &[Operand]) -> Result<String, String> {
        let kind = Type { kind: Kind::Float, bits: 32 };
        let name = one.parts[0].as_str();
        let to_zero = one.has("rz") && name == "add";
        let rounds = ["rm", "rp", "full"].iter().any(|part| one.has(part));
        let rounds = rounds || one.has("rz") && !to_zero;
        let flushes = ["mul", "fma", "add", "sub", "rcp"].contains(&name);
        if rounds || one.has("approx") && name != "rcp" || one.has("ftz") && !flushes {
            return Err("a form of it".into());
        }
        let mut x = Vec::new();
        for operand in from {
            let value = self.value(operand, kind)?;
            x.push(if one.has("ftz") { format!("flushed({value})") } else { value });
        }
        let (found, canon) = match (name, &x[..]) {
            ("add", [a, b]) if to_zero => (format!("add_to_zero({a}, {b})"), true),
            ("add", [a, b]) => (format!("{a} + {b}"), true),
            ("sub", [a, b]) => (format!("{a} - {b}"), true),
            ("mul", [a, b]) if one.has("ftz") => (format!("fma_flushed({a}, {b}, -0.0f)"), true),
            ("fma", [a, b, c]) if one.has("ftz") => (format!("fma_flushed({a}, {b}, {c})"), true),
            ("mul", [a, b]) => (format!("{a} * {b}"), true),
            ("fma" | "mad", [a, b, c]) => (format!("fma_f32({a}, {b}, {c})"), true),
            ("div", [a, b]) if one.has("rn") => (format!("{a} / {b}"), true),
            ("sqrt", [a]) if one.has("rn") => (format!("__builtin_sqrtf({a})"), true),
            // As near as it may be: the division.
            ("rcp", [a]) => (format!("1.0f / {a}"), true),
            ("max", [a, b]) => (format!("max_f32({a}, {b})"), false),
            ("min", [a, b]) => (format!("min_f32({a}, {b})"), false),
            ("abs", [a]) => (format!("of_bits(bits({a}) & 0x7fffffff)"), false),
            ("copysign", [sign, a]) => {
                (format!("of_bits((bits({a}) & 0x7fffffff) | (bits({sign}) & 0x80000000))"), false)
            }
            ("neg", [a]) => (format!("of_bits(bits({a}) ^ 0x80000000)"), false),
            _ => return Err("a form of it".into()),
        };
        let found = if one.has("ftz") { format!("flushed({found})") } else { found };
        let found = match canon && self.is_seen(to) {
            true => format!("one_nan({found})"),
            false => found,
        };
        self.assign(to, kind, &found)
    }

    fn logic(&self, one: &Instruction, to: &Operand, from: &[Operand]) -> Result<String, String> {
        let kind = Type { kind: Kind::Predicate, bits: 1 };
        let x = self.values(from, kind)?;
        let found = match (one.parts[0].as_str(), &x[..]) {
            ("and", [a, b]) => format!("{a} & {b}"),
            ("or", [a, b]) => format!("{a} | {b}"),
            ("xor", [a, b]) => format!("{a} ^ {b}"),
            ("not", [a]) => format!("!{a}"),
            _ => return Err("a form of it".into()),
        };
        self.assign(to, kind, &found)
    }

    fn values(&self, from: &[Operand], kind: Type) -> Result<Vec<String>, String> {
        from.iter().map(|operand| self.value(operand, kind)).collect()
    }

    fn integer(
        &self,
        one: &Instruction,
        to: &Operand,
        from: &[Operand],
        kind: Type,
    ) -> Result<String, String> {
        let (name, bits) = (one.parts[0].as_str(), kind.bits);
        let of = kind.unsigned();
        let sign = if kind.kind == Kind::Signed { "s" } else { "u" };
        match (name, from) {
            ("selp", [a, b, by]) => {
                let (a, b) = (self.value(a, kind)?, self.value(b, kind)?);
                let by = self.value(by, Type { kind: Kind::Predicate, bits: 1 })?;
                return self.assign(to, kind, &format!("{by} ? {a} : {b}"));
            }
            ("shl" | "shr", [a, by]) => {
                let (a, by) = (self.value(a, kind)?, self.value(by, U32)?);
                let sign = if name == "shl" { "" } else { sign };
                return self.assign(to, of, &format!("{name}_{sign}{bits}({a}, {by})"));
            }
            ("bfi", [a, b, at, length]) => {
                let (a, b) = (self.value(a, of)?, self.value(b, of)?);
                let (at, length) = (self.value(at, U32)?, self.value(length, U32)?);
                return self.assign(to, of, &format!("bfi({a}, {b}, {at}, {length}, {bits})"));
            }
            ("bfe", [a, at, length]) => {
                let a = self.value(a, kind)?;
                let (at, length) = (self.value(at, U32)?, self.value(length, U32)?);
                let found = match (kind.kind, bits) {
                    (Kind::Signed, 32) => format!("bfe_s32({a}, {at}, {length})"),
                    (Kind::Signed, _) => return Err("a form of it".into()),
                    _ => format!("bfe_u({a}, {at}, {length}, {bits})"),
                };
                return self.assign(to, of, &found);
            }
            ("mul" | "mad", _) => return self.multiplied(one, to, from, kind),
            _ => {}
        }
        let x = self.values(from, kind)?;
        let u = self.values(from, of)?;
        let found = match (name, &x[..], &u[..]) {
            ("add", _, [a, b]) => format!("{a} + {b}"),
            ("sub", _, [a, b]) => format!("{a} - {b}"),
            ("and", _, [a, b]) => format!("{a} & {b}"),
            ("or", _, [a, b]) => format!("{a} | {b}"),
            ("xor", _, [a, b]) => format!("{a} ^ {b}"),
            ("not", _, [a]) => format!("~{a}"),
            ("neg", _, [a]) => format!("0 - {a}"),
            ("abs", [a], [b]) => format!("{a} < 0 ? 0 - {b} : {b}"),
            ("max", [a, b], _) => format!("{a} > {b} ? {a} : {b}"),
            ("min", [a, b], _) => format!("{a} < {b} ? {a} : {b}"),
            ("div", [a, b], _) if bits >= 32 => format!("{sign}{bits}_by({a}, {b})"),
            ("rem", [a, b], _) if bits >= 32 => format!("{sign}{bits}_rest({a}, {b})"),
            ("brev", _, [a]) if bits == 32 => format!("reversed({a})"),
            ("popc", _, [a]) => format!("(uint32_t)__builtin_popcountll({a})"),
            ("clz", _, [a]) if bits == 32 => format!("{a} ? (uint32_t)__builtin_clz({a}) : 32"),
            ("bfind", _, [a]) if bits == 32 && sign == "u" => {
                let by = if one.has("shiftamt") { "" } else { "31 - " };
                format!("{a} ? {by}(uint32_t)__builtin_clz({a}) : UINT32_MAX")
            }
            ("prmt", _, [a, b, by]) if one.parts.len() == 2 => format!("prmt({a}, {b}, {by})"),
            _ => return Err("a form of it".into()),
        };
        self.assign(to, of, &found)
    }

    fn multiplied(
        &self,
        one: &Instruction,
        to: &Operand,
        from: &[Operand],
        kind: Type,
    ) -> Result<String, String> {
        let [a, b, rest @ ..] = from else { return Err("its operands".into()) };
        let (wide, high) = (one.has("wide"), one.has("hi"));
        if wide && kind.bits == 64 || high && kind.bits != 32 {
            return Err("a form of it".into());
        }
        let twice = Type { kind: kind.kind, bits: 2 * kind.bits };
        let (a, b) = (self.value(a, kind)?, self.value(b, kind)?);
        let product = match (wide, high) {
            (true, _) => format!("({0}){a} * ({0}){b}", twice.c()),
            (_, true) => format!("(uint32_t)((({0}){a} * ({0}){b}) >> 32)", twice.c()),
            _ => format!("(uint64_t){a} * (uint64_t){b}"),
        };
        let of = if wide { twice } else { kind }.unsigned();
        match (one.parts[0].as_str(), rest) {
            ("mul", []) => self.assign(to, of, &product),
            ("mad", [c]) => {
                let c = self.value(c, of)?;
                self.assign(to, of, &format!("({})({product}) + {c}", of.c()))
            }
            _ => Err("its operands".into()),
        }
    }

    /// `setp.lt.s32 p, a, b`, or with a further predicate: `setp.lt.and.s32 p, a, b, q`.
    fn compared(&self, one: &Instruction, kind: Type) -> Result<String, String> {
        let [to, a, b, more @ ..] = &one.operands[..] else { return Err("its operands".into()) };
        if one.has("ftz") || matches!(to, Operand::Both(..)) {
            return Err("a form of it".into());
        }
        let how = one.parts.get(1).map_or("", String::as_str);
        let (a, b) = (self.value(a, kind)?, self.value(b, kind)?);
        let sign = |how: &str| match how {
            "eq" => Some("=="),
            "lt" | "lo" => Some("<"),
            "le" | "ls" => Some("<="),
            "gt" | "hi" => Some(">"),
            "ge" | "hs" => Some(">="),
            _ => None,
        };
        let apart = format!("{a} != {a} || {b} != {b}");
        let found = match (how, kind.is_float()) {
            ("ne", false) => format!("{a} != {b}"),
            ("ne", true) => format!("({a} < {b} || {a} > {b})"),
            ("neu", true) => format!("({a} != {b})"),
            ("nan", true) => format!("({apart})"),
            ("num", true) => format!("!({apart})"),
            (how, true) if how.ends_with('u') => {
                let how = sign(&how[..how.len() - 1]).ok_or("how it compares")?;
                format!("({apart} || {a} {how} {b})")
            }
            (how, _) => format!("{a} {} {b}", sign(how).ok_or("how it compares")?),
        };
        let found = match (more, one.parts.len()) {
            ([], 3) => found,
            ([also], 4) => {
                let also = self.value(also, Type { kind: Kind::Predicate, bits: 1 })?;
                match one.parts[2].as_str() {
                    "and" => format!("({found}) & {also}"),
                    "or" => format!("({found}) | {also}"),
                    "xor" => format!("({found}) ^ {also}"),
                    _ => return Err("a form of it".into()),
                }
            }
            _ => return Err("a form of it".into()),
        };
        self.assign(to, Type { kind: Kind::Predicate, bits: 1 }, &found)
    }
}
