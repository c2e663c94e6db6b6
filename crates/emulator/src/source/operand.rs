//! Operands, and types of PTX, in C.

use super::{Writer, c_name};
use crate::ptx::{Class, Operand};

/// A type of PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Type {
    pub kind: Kind,
    pub bits: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Signed,
    /// Unsigned, or bits of anything.
    Bits,
    Float,
    Predicate,
}

pub(super) const U32: Type = Type { kind: Kind::Bits, bits: 32 };
pub(super) const U64: Type = Type { kind: Kind::Bits, bits: 64 };

impl Type {
    /// As a part of an instruction's name says.
    pub(super) fn of(part: &str) -> Option<Self> {
        if part == "pred" {
            return Some(Self { kind: Kind::Predicate, bits: 1 });
        }
        let (kind, bits) = part.split_at_checked(1)?;
        let kind = match kind {
            "s" => Kind::Signed,
            "u" | "b" => Kind::Bits,
            "f" => Kind::Float,
            _ => return None,
        };
        let bits = bits.parse().ok().filter(|bits| [8, 16, 32, 64].contains(bits))?;
        Some(Self { kind, bits })
    }

    /// Its name in C.
    pub(super) fn c(self) -> &'static str {
        match (self.kind, self.bits) {
            (Kind::Predicate, _) => "uint32_t",
            (Kind::Float, 32) => "float",
            (Kind::Signed, 8) => "int8_t",
            (Kind::Signed, 16) => "int16_t",
            (Kind::Signed, 32) => "int32_t",
            (Kind::Signed, _) => "int64_t",
            (_, 8) => "uint8_t",
            (_, 16) => "uint16_t",
            (_, 32) => "uint32_t",
            _ => "uint64_t",
        }
    }

    pub(super) fn unsigned(self) -> Self {
        Self { kind: Kind::Bits, bits: self.bits }
    }

    pub(super) fn is_float(self) -> bool {
        self.kind == Kind::Float
    }
}

impl Writer {
    /// The class of a register.
    pub(super) fn class(&self, name: &str) -> Option<Class> {
        self.registers.get(name).copied()
    }

    /// An operand as a value of `kind`.
    pub(super) fn value(&self, operand: &Operand, kind: Type) -> Result<String, String> {
        let c = kind.c();
        Ok(match operand {
            Operand::Integer(value) if kind.kind == Kind::Predicate => {
                u32::from(*value != 0).to_string()
            }
            Operand::Integer(value) => match kind.is_float() {
                true => format!("of_bits({:#x}u)", *value as u32),
                false => format!("(({c}){:#x}ull)", *value as u64),
            },
            Operand::Float(bits) => match kind.is_float() {
                true => format!("of_bits({bits:#x}u)"),
                false => format!("(({c}){bits:#x}u)"),
            },
            Operand::Name(name) => match self.class(name) {
                Some(Class::Float) if kind.is_float() => c_name(name),
                Some(Class::Float) => format!("(({c})bits({}))", c_name(name)),
                Some(Class::Predicate) => c_name(name),
                Some(Class::Bits(_)) if kind.is_float() => {
                    format!("of_bits((uint32_t){})", c_name(name))
                }
                Some(Class::Bits(_)) => format!("(({c}){})", c_name(name)),
                None => format!("(({c}){})", self.special(name)?),
            },
            other => return Err(format!("{other:?} is no value")),
        })
    }

    /// A special register or the address of a variable.
    fn special(&self, name: &str) -> Result<String, String> {
        if let Some(place) = self.places.get(name) {
            return Ok(place.clone());
        }
        if let Some((base, side)) = name.strip_prefix('%').and_then(|name| name.split_once('.')) {
            let side = ["x", "y", "z"].iter().position(|own| *own == side);
            let known = ["tid", "ntid", "ctaid", "nctaid"].contains(&base);
            if let (Some(side), true) = (side, known) {
                return Ok(format!("t->{base}[{side}]"));
            }
        }
        match name {
            "%laneid" => Ok(format!("({FLAT} & 31)")),
            "%warpid" => Ok(format!("({FLAT} >> 5)")),
            "%lanemask_lt" => Ok(format!("((1u << ({FLAT} & 31)) - 1)")),
            "WARP_SZ" => Ok("32".into()),
            _ => Err(format!("`{name}` is unknown")),
        }
    }

    /// Gives a register the value `what` of `kind`, extended as `kind` says.
    pub(super) fn assign(&self, to: &Operand, kind: Type, what: &str) -> Result<String, String> {
        let name = match to {
            Operand::Nothing => return Ok(format!("(void)({what});")),
            Operand::Name(name) => name,
            other => return Err(format!("{other:?} takes no value")),
        };
        let own = c_name(name);
        Ok(match self.class(name) {
            None => return Err(format!("`{name}` is no register")),
            Some(Class::Predicate) => format!("{own} = {what};"),
            Some(Class::Float) if kind.is_float() => format!("{own} = {what};"),
            Some(Class::Float) => format!("{own} = of_bits((uint32_t)({what}));"),
            Some(Class::Bits(_)) if kind.is_float() => format!("{own} = bits({what});"),
            Some(Class::Bits(_)) if kind.kind == Kind::Signed => {
                format!("{own} = (int64_t)({})({what});", kind.c())
            }
            Some(Class::Bits(_)) => format!("{own} = ({})({what});", kind.c()),
        })
    }

    /// Whether the bits of a result are seen.
    pub(super) fn is_seen(&self, to: &Operand) -> bool {
        match to {
            Operand::Name(name) => self.seen.contains(name),
            _ => true,
        }
    }

    /// The address that `[base+offset]` names.
    pub(super) fn address(&self, operand: &Operand) -> Result<String, String> {
        let Operand::Memory(base, offset) = operand else {
            return Err(format!("{operand:?} is no place"));
        };
        let base = self.value(base, U64)?;
        Ok(match offset {
            0 => base,
            _ => format!("({base} + {:#x}ull)", *offset as u64),
        })
    }
}

/// A thread's number in its block.
const FLAT: &str = "(t->tid[0] + t->ntid[0] * (t->tid[1] + t->ntid[1] * t->tid[2]))";
