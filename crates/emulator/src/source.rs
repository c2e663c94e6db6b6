//! A kernel as C: a function of a thread, registers as its variables.

mod compute;
mod convert;
mod memory;
mod operand;
mod together;

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use crate::ptx::{Class, Entry, Instruction, Operand, Space, Statement, Text};

/// What every kernel's C begins with.
const PRELUDE: &str = include_str!("source/prelude.h");

/// Bytes that the stack of a thread needs for each register, at most.
const REGISTER_BYTES: usize = 8;

/// A kernel's C.
pub(crate) struct Source {
    pub text: String,
    /// Bytes of shared memory that it declares.
    pub static_shared_bytes: u32,
    /// Bytes that its own variables may take.
    pub stack_bytes: usize,
    /// Whether it looks for what others write meanwhile.
    pub looks: bool,
}

/// The C of `entry`, as the function `kernel`.
///
/// # Errors
/// The line and name of what is not emulated.
pub(crate) fn source(text: &Text, entry: &Entry) -> Result<Source, String> {
    let mut writer = Writer::new(text, entry);
    let mut body = String::new();
    for statement in &entry.body {
        match statement {
            Statement::Label(label) => _ = writeln!(body, "{}:;", c_name(label)),
            Statement::Instruction(instruction) => {
                let done = writer.instruction(instruction).map_err(|what| {
                    let (line, name) = (instruction.line, instruction.name());
                    format!("PTX line {line}: `{name}` is not emulated: {what}")
                })?;
                match &instruction.guard {
                    Some((by, not)) => {
                        let not = if *not { "!" } else { "" };
                        _ = writeln!(body, "if ({not}{}) {{ {done} }}", c_name(by));
                    }
                    None => _ = writeln!(body, "{done}"),
                }
            }
        }
    }
    let mut c = String::with_capacity(PRELUDE.len() + body.len() + 4096);
    _ = write!(c, "{PRELUDE}\nvoid kernel(Thread *t) {{\n{}", writer.declared(entry));
    _ = writeln!(c, "{body}}}");
    let local: usize = entry.variables.iter().filter_map(|variable| variable.bytes).sum();
    let stack_bytes = local + REGISTER_BYTES * entry.registers.len();
    let (looks, static_shared_bytes) = (writer.looks, writer.static_shared_bytes);
    Ok(Source { text: c, static_shared_bytes, stack_bytes, looks })
}

/// A name as C has it.
fn c_name(name: &str) -> String {
    let name = name.trim_start_matches(['%', '$']).replace('$', "_");
    format!("x_{name}")
}

struct Writer {
    registers: HashMap<String, Class>,
    /// What names of memory stand for.
    places: HashMap<String, String>,
    /// Registers whose bits are seen, and not only their value.
    seen: HashSet<String>,
    static_shared_bytes: u32,
    looks: bool,
}

impl Writer {
    fn new(text: &Text, entry: &Entry) -> Self {
        let registers = entry.registers.iter();
        let registers = registers.map(|own| (own.name.clone(), own.class)).collect();
        let mut places = HashMap::new();
        for param in &entry.params {
            let place = format!("((uint64_t)(uintptr_t)t->params + {})", param.offset);
            places.insert(param.name.clone(), place);
        }
        let mut shared = 0;
        let all = || entry.variables.iter().chain(&text.variables);
        for variable in all().filter(|variable| variable.space == Space::Shared) {
            if let Some(bytes) = variable.bytes {
                shared = usize::next_multiple_of(shared, variable.align);
                places.insert(variable.name.clone(), format!("((uint64_t){shared})"));
                shared += bytes;
            }
        }
        for variable in all() {
            let place = match (variable.space, variable.bytes) {
                (Space::Shared, None) => {
                    format!("((uint64_t){})", shared.next_multiple_of(variable.align))
                }
                (Space::Local, _) => {
                    format!("((uint64_t)(uintptr_t){})", c_name(&variable.name))
                }
                _ => continue,
            };
            places.insert(variable.name.clone(), place);
        }
        let seen = seen(entry);
        Self { registers, places, seen, static_shared_bytes: shared as u32, looks: false }
    }

    /// The declarations of all registers and local variables.
    fn declared(&self, entry: &Entry) -> String {
        let mut c = String::new();
        for register in &entry.registers {
            let kind = match register.class {
                Class::Predicate => "uint32_t",
                Class::Float => "float",
                Class::Bits(8) => "uint8_t",
                Class::Bits(16) => "uint16_t",
                Class::Bits(32) => "uint32_t",
                Class::Bits(_) => "uint64_t",
            };
            _ = writeln!(c, "{kind} {} = 0;", c_name(&register.name));
        }
        for variable in entry.variables.iter().filter(|own| own.space == Space::Local) {
            let (name, align) = (c_name(&variable.name), variable.align);
            let bytes = variable.bytes.unwrap_or(0);
            _ = writeln!(c, "uint8_t {name}[{bytes}] __attribute__((aligned({align})));");
        }
        c
    }

    fn instruction(&mut self, one: &Instruction) -> Result<String, String> {
        match one.parts[0].as_str() {
            "bra" => match one.operands.first() {
                Some(Operand::Name(label)) => Ok(format!("goto {};", c_name(label))),
                _ => Err("where it goes".into()),
            },
            "ret" | "exit" => Ok("return;".into()),
            "trap" => Ok(format!("t->calls->fault(t, {}, FAULT_TRAP, 0);", one.line)),
            // What it bounds and orders is always so here.
            "membar" | "fence" | "setmaxnreg" | "griddepcontrol" => Ok(";".into()),
            "ld" | "st" | "atom" | "red" | "cp" => self.memory(one),
            "bar" | "barrier" | "shfl" | "vote" | "mma" | "mbarrier" | "wgmma" | "activemask" => {
                self.together(one)
            }
            "cvt" | "cvta" | "mov" => self.convert(one),
            _ => self.compute(one),
        }
    }
}

/// Float registers whose bits something sees: what only goes into sums may hold any NaN.
fn seen(entry: &Entry) -> HashSet<String> {
    const VALUES: [&str; 10] =
        ["add", "sub", "mul", "fma", "mad", "div", "sqrt", "setp", "max", "min"];
    let mut seen = HashSet::new();
    for statement in &entry.body {
        let Statement::Instruction(one) = statement else { continue };
        let name = one.parts[0].as_str();
        if !VALUES.contains(&name) {
            let all =
                if name == "st" { &one.operands[..] } else { one.operands.get(1..).unwrap_or(&[]) };
            all.iter().for_each(|operand| gather(operand, &mut seen));
        }
    }
    seen
}

fn gather(operand: &Operand, names: &mut HashSet<String>) {
    match operand {
        Operand::Name(name) => _ = names.insert(name.clone()),
        Operand::Many(all) => all.iter().for_each(|one| gather(one, names)),
        Operand::Both(one, other) => {
            gather(one, names);
            gather(other, names);
        }
        _ => {}
    }
}
