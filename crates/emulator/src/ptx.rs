//! PTX as data: what a text declares and the statements of its kernels.

mod read;
mod words;

pub(crate) use read::read;

/// What a text holds.
#[derive(Debug, Default)]
pub(crate) struct Text {
    /// The target it was made for, `sm_80` say.
    pub target: String,
    /// Variables outside of kernels.
    pub variables: Vec<Variable>,
    pub entries: Vec<Entry>,
}

/// A kernel.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub name: String,
    pub params: Vec<Param>,
    /// Variables that it declares.
    pub variables: Vec<Variable>,
    pub registers: Vec<Register>,
    pub body: Vec<Statement>,
}

/// A parameter: where it lies in the buffer of all, in bytes.
#[derive(Debug, Clone)]
pub(crate) struct Param {
    pub name: String,
    pub offset: usize,
    pub bytes: usize,
}

/// A variable in memory.
#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub name: String,
    pub space: Space,
    pub align: usize,
    /// None if it is as large as the launch says.
    pub bytes: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Shared,
    Local,
}

/// A register, by the name that statements call it.
#[derive(Debug, Clone)]
pub(crate) struct Register {
    pub name: String,
    pub class: Class,
}

/// What a register holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Predicate,
    /// So many bits.
    Bits(u32),
    Float,
}

#[derive(Debug)]
pub(crate) enum Statement {
    Label(String),
    Instruction(Instruction),
}

/// One instruction and the line that it is on.
#[derive(Debug)]
pub(crate) struct Instruction {
    pub line: u32,
    /// The predicate that it runs by, and whether that must not hold.
    pub guard: Option<(String, bool)>,
    /// Its name in parts: `ld`, `global`, `v4`, `f32`.
    pub parts: Vec<String>,
    pub operands: Vec<Operand>,
}

impl Instruction {
    /// Its whole name.
    pub(crate) fn name(&self) -> String {
        self.parts.join(".")
    }

    /// Whether a part of its name is `part`.
    pub(crate) fn has(&self, part: &str) -> bool {
        self.parts.iter().any(|own| own == part)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    /// A register, a special register, a variable or a label.
    Name(String),
    Integer(i128),
    /// The bits of a 32-bit float.
    Float(u32),
    /// What lies `1` bytes behind a register or variable.
    Memory(Box<Operand>, i64),
    Many(Vec<Operand>),
    /// `a|p`.
    Both(Box<Operand>, Box<Operand>),
    Nothing,
}
