//! The reading of a PTX text.

use super::words::{Word, words};
use super::{
    Class, Entry, Instruction, Operand, Param, Register, Space, Statement, Text, Variable,
};

/// Blocks within blocks of statements.
const DEPTH_MAX: usize = 8;

/// Reads `text`.
///
/// # Errors
/// The line and what is not understood there.
pub(crate) fn read(text: &str) -> Result<Text, String> {
    let mut reader = Reader { words: words(text), at: 0, blocks: 0 };
    let mut found = Text::default();
    while let Some(word) = reader.peek() {
        match word {
            ".target" => {
                found.target = reader.ahead(1).unwrap_or_default().to_owned();
                reader.skip_line();
            }
            ".version" | ".address_size" => reader.skip_line(),
            ".visible" | ".extern" | ".weak" | ".common" => {
                reader.take();
            }
            ".entry" => found.entries.push(reader.entry()?),
            ".global" | ".const" | ".shared" => found.variables.push(reader.variable()?),
            _ => return Err(reader.unknown("a declaration")),
        }
    }
    Ok(found)
}

struct Reader {
    words: Vec<Word>,
    at: usize,
    /// Blocks so far, by which their names are told apart.
    blocks: usize,
}

/// Names of a block and what they stand for.
type Names = Vec<(String, String)>;

impl Reader {
    fn peek(&self) -> Option<&str> {
        self.ahead(0)
    }

    fn ahead(&self, by: usize) -> Option<&str> {
        self.words.get(self.at + by).map(|word| word.text.as_str())
    }

    fn line(&self) -> u32 {
        self.words.get(self.at).or(self.words.last()).map_or(0, |word| word.line)
    }

    fn take(&mut self) -> String {
        let word = self.words.get_mut(self.at).map(|word| std::mem::take(&mut word.text));
        self.at += 1;
        word.unwrap_or_default()
    }

    fn is(&mut self, text: &str) -> bool {
        let is = self.peek() == Some(text);
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, text: &str) -> Result<(), String> {
        if self.is(text) { Ok(()) } else { Err(self.unknown(&format!("`{text}`"))) }
    }

    fn unknown(&self, wanted: &str) -> String {
        let found = self.peek().unwrap_or("the end");
        format!("PTX line {}: {wanted} was expected, and `{found}` found", self.line())
    }

    fn number<T: std::str::FromStr>(&mut self) -> Result<T, String> {
        let found = self.peek().and_then(|word| word.parse().ok());
        let found = found.ok_or_else(|| self.unknown("a number"))?;
        self.at += 1;
        Ok(found)
    }

    fn skip_line(&mut self) {
        let line = self.line();
        while self.at < self.words.len() && self.line() == line {
            self.at += 1;
        }
    }

    fn skip_statement(&mut self) {
        while self.at < self.words.len() && !self.is(";") {
            self.at += 1;
        }
    }

    /// `.shared .align 16 .b8 name[64];`
    fn variable(&mut self) -> Result<Variable, String> {
        let space = match self.take().as_str() {
            ".shared" => Space::Shared,
            ".local" => Space::Local,
            _ => Space::Global,
        };
        let (name, align, bytes) = self.declared()?;
        self.expect(";")?;
        Ok(Variable { name, space, align, bytes })
    }

    /// `.align 8 .b8 name[472]`: name, alignment, and bytes, none for `[]`.
    fn declared(&mut self) -> Result<(String, usize, Option<usize>), String> {
        let align = if self.is(".align") { self.number()? } else { 1 };
        let each =
            bytes_of(self.peek().unwrap_or_default()).ok_or_else(|| self.unknown("a type"))?;
        self.take();
        let name = self.take();
        let mut bytes = Some(each);
        if self.is("[") {
            bytes = None;
            if !self.is("]") {
                bytes = Some(each * self.number::<usize>()?);
                self.expect("]")?;
            }
        }
        Ok((name, align.max(each), bytes))
    }

    fn entry(&mut self) -> Result<Entry, String> {
        self.take();
        let mut entry = Entry { name: self.take(), ..Entry::default() };
        if self.is("(") {
            while !self.is(")") {
                let last = entry.params.last();
                let end = last.map_or(0, |param: &Param| param.offset + param.bytes);
                entry.params.push(self.param(end)?);
                self.is(",");
            }
        }
        while self.peek().is_some_and(|word| word.starts_with('.')) {
            self.skip_line();
        }
        self.expect("{")?;
        self.block(&mut entry, &mut Vec::new())?;
        Ok(entry)
    }

    /// `.param .align 8 .b8 name[472]`, behind `end` bytes of others.
    fn param(&mut self, end: usize) -> Result<Param, String> {
        self.expect(".param")?;
        let (name, align, bytes) = self.declared()?;
        let bytes = bytes.ok_or_else(|| self.unknown("a parameter's size"))?;
        Ok(Param { name, offset: end.next_multiple_of(align), bytes })
    }

    /// The statements up to `}`. `names` are those of the blocks around it.
    fn block(&mut self, entry: &mut Entry, names: &mut Vec<Names>) -> Result<(), String> {
        if names.len() >= DEPTH_MAX {
            return Err(self.unknown("no further block"));
        }
        names.push(self.labels(!names.is_empty()));
        while !self.is("}") {
            let Some(word) = self.peek() else { return Err(self.unknown("`}`")) };
            match word {
                "{" => {
                    self.take();
                    self.block(entry, names)?;
                }
                ";" => self.at += 1,
                ".reg" => self.registers(entry, names)?,
                ".shared" | ".local" => {
                    let variable = self.variable()?;
                    entry.variables.push(variable);
                }
                ".pragma" => self.skip_statement(),
                ".loc" | ".file" => self.skip_line(),
                _ if self.ahead(1) == Some(":") => {
                    let label = resolve(&self.take(), names);
                    self.take();
                    entry.body.push(Statement::Label(label));
                }
                _ => {
                    let instruction = self.instruction(names)?;
                    entry.body.push(Statement::Instruction(instruction));
                }
            }
        }
        names.pop();
        Ok(())
    }

    /// The labels of the block that begins here, which may be used before they are there.
    fn labels(&mut self, inner: bool) -> Names {
        if !inner {
            return Vec::new();
        }
        self.blocks += 1;
        let (mut depth, mut labels) = (0, Vec::new());
        for pair in self.words[self.at..].windows(2) {
            match pair[0].text.as_str() {
                "{" => depth += 1,
                "}" if depth == 0 => break,
                "}" => depth -= 1,
                name if depth == 0 && pair[1].text == ":" => {
                    labels.push((name.to_owned(), format!("{name}_{}", self.blocks)));
                }
                _ => {}
            }
        }
        labels
    }

    fn registers(&mut self, entry: &mut Entry, names: &mut [Names]) -> Result<(), String> {
        self.take();
        let class = match self.peek().unwrap_or_default() {
            ".pred" => Class::Predicate,
            ".f32" => Class::Float,
            other => match bytes_of(other) {
                Some(bytes) if other != ".f64" => Class::Bits(8 * bytes as u32),
                _ => return Err(self.unknown("a register's type")),
            },
        };
        self.take();
        let inner = names.len() > 1;
        loop {
            let name = self.take();
            if self.is("<") {
                let count: usize = self.number()?;
                self.expect(">")?;
                let all = (0..count).map(|i| Register { name: format!("{name}{i}"), class });
                entry.registers.extend(all);
            } else if inner {
                let own = format!("{name}_{}", self.blocks);
                if let Some(names) = names.last_mut() {
                    names.push((name, own.clone()));
                }
                entry.registers.push(Register { name: own, class });
            } else {
                entry.registers.push(Register { name, class });
            }
            if !self.is(",") {
                return self.expect(";");
            }
        }
    }

    fn instruction(&mut self, names: &[Names]) -> Result<Instruction, String> {
        let line = self.line();
        let mut guard = None;
        if self.is("@") {
            let not = self.is("!");
            guard = Some((resolve(&self.take(), names), not));
        }
        let parts: Vec<String> = self.take().split('.').map(str::to_owned).collect();
        let mut operands = Vec::new();
        while !self.is(";") {
            operands.push(self.operand(names)?);
            if !self.is(",") {
                self.expect(";")?;
                break;
            }
        }
        Ok(Instruction { line, guard, parts, operands })
    }

    fn operand(&mut self, names: &[Names]) -> Result<Operand, String> {
        if self.is("{") {
            let mut many = Vec::new();
            while !self.is("}") {
                many.push(self.operand(names)?);
                self.is(",");
            }
            return Ok(Operand::Many(many));
        }
        if self.is("[") {
            let base = self.operand(names)?;
            let mut offset = 0;
            if self.is("+") {
                match self.operand(names)? {
                    Operand::Integer(value) => offset = value as i64,
                    _ => return Err(self.unknown("an offset")),
                }
            }
            self.expect("]")?;
            return Ok(Operand::Memory(Box::new(base), offset));
        }
        let minus = self.is("-");
        let word = self.peek().unwrap_or_default().to_owned();
        let first = word.chars().next().unwrap_or(';');
        let operand = if let Some(bits) = word.strip_prefix("0f").or(word.strip_prefix("0F")) {
            u32::from_str_radix(bits, 16).ok().map(Operand::Float)
        } else if first.is_ascii_digit() {
            integer(&word).map(|value| Operand::Integer(if minus { -value } else { value }))
        } else if word == "_" {
            Some(Operand::Nothing)
        } else if first.is_alphabetic() || matches!(first, '%' | '$' | '_') {
            Some(Operand::Name(resolve(&word, names)))
        } else {
            None
        };
        let operand = operand.ok_or_else(|| self.unknown("an operand"))?;
        self.take();
        if self.is("|") {
            return Ok(Operand::Both(Box::new(operand), Box::new(self.operand(names)?)));
        }
        Ok(operand)
    }
}

/// What `name` stands for in the innermost block that has it.
fn resolve(name: &str, names: &[Names]) -> String {
    let found = names.iter().rev().flatten().find(|(own, _)| own == name);
    found.map_or(name, |(_, stands)| stands).to_owned()
}

fn integer(word: &str) -> Option<i128> {
    let word = word.trim_end_matches('U');
    match word.strip_prefix("0x").or(word.strip_prefix("0X")) {
        Some(digits) => i128::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// Bytes of a type such as `.b32`.
fn bytes_of(kind: &str) -> Option<usize> {
    match kind.strip_prefix('.')? {
        "b8" | "u8" | "s8" => Some(1),
        "b16" | "u16" | "s16" | "f16" => Some(2),
        "b32" | "u32" | "s32" | "f32" => Some(4),
        "b64" | "u64" | "s64" | "f64" => Some(8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "
.version 9.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 memory[];
.visible .entry one(
    .param .u32 one_param_0,
    .param .align 8 .b8 one_param_1[24]
)
.maxntid 32, 1, 1
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    .shared .align 4 .b8 part[12];
    ld.param.u32 %r1, [one_param_0];
    @!%p1 bra again;
again:
    { .reg .pred p;
    again: setp.ne.s32 p, %r1, -1; @p bra again; }
    shfl.sync.idx.b32 %r2|%p1, %r1, 0x1f, 31, -1;
    ret;
}
";

    #[test]
    fn a_text_is_read_with_its_parameters_and_the_names_of_its_blocks() {
        let text = read(SMALL).expect("reads");
        let entry = &text.entries[0];
        assert_eq!((text.target.as_str(), entry.name.as_str()), ("sm_80", "one"));
        assert_eq!((entry.params[1].offset, entry.params[1].bytes), (8, 24));
        assert_eq!(entry.variables[0].bytes, Some(12));
        let guards: Vec<_> = entry.body.iter().filter_map(guard).collect();
        assert_eq!(guards, [("%p1".to_owned(), true), ("p_1".to_owned(), false)]);
        assert!(matches!(&entry.body[3], Statement::Label(label) if label == "again_1"));
    }

    fn guard(statement: &Statement) -> Option<(String, bool)> {
        match statement {
            Statement::Instruction(instruction) => instruction.guard.clone(),
            Statement::Label(_) => None,
        }
    }

    #[test]
    fn what_is_not_understood_is_named_with_its_line() {
        let error = read(".target sm_80\n.func x;").expect_err("refuses");
        assert!(error.contains("line 2") && error.contains("`.func`"), "{error}");
    }
}
