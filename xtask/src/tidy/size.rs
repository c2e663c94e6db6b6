//! Files, functions and lines that a reader can take in at once.

use super::source::{self, Kind};
use super::{File, Finding};

const FILE_LINES_WARN: usize = 700;
const FILE_LINES_MAX: usize = 1_000;
const FUNCTION_LINES_MAX: usize = 70;
const COLUMNS_MAX: usize = 100;

/// Above a kernel body that is long for a reason, which follows: `// tidy: kernel, REASON`.
const KERNEL: &str = "// tidy: kernel, ";

/// Lines of a source file.
pub fn file(file: &File) -> Vec<Finding> {
    let written = file.is_rust() || [".py", ".md", ".sh"].iter().any(|e| file.path.ends_with(e));
    let count = file.text.lines().count();
    if !written || file.is_made() || count <= FILE_LINES_WARN {
        return Vec::new();
    }
    let fatal = count > FILE_LINES_MAX;
    let limit = if fatal { FILE_LINES_MAX } else { FILE_LINES_WARN };
    let finding = file.fault(1, format!("{count} lines, over {limit}: a file is one noun"));
    vec![Finding { fatal, ..finding }]
}

/// Lines of each function, from `fn` to its last brace.
pub fn functions(file: &File) -> Vec<Finding> {
    if !file.is_rust() {
        return Vec::new();
    }
    let code = source::code(&file.text);
    let lines: Vec<&str> = file.text.lines().collect();
    let mut findings = Vec::new();
    for at in source::words(&code, "fn") {
        let Some(end) = end_of_body(&code[at..]) else {
            continue;
        };
        let first = source::line_of(&code, at);
        let count = source::line_of(&code, at + end) - first + 1;
        if count > FUNCTION_LINES_MAX && !is_kernel(&lines[..first - 1]) {
            let what = format!("a function of {count} lines, over {FUNCTION_LINES_MAX}");
            findings.push(file.fault(first, what));
        }
    }
    findings
}

/// The offset of the brace that closes the body of the function that begins `code`; `None` for a
/// function type and for a declaration without a body.
fn end_of_body(code: &str) -> Option<usize> {
    let name = code["fn".len()..].trim_start().chars().next()?;
    if !source::in_word(name) {
        return None;
    }
    let (mut braces, mut brackets) = (0usize, 0usize);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.saturating_sub(1),
            '{' => braces += 1,
            '}' => {
                braces = braces.checked_sub(1)?;
                if braces == 0 {
                    return Some(at);
                }
            }
            ';' if braces == 0 && brackets == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Whether the comments and attributes right above a function mark it as a kernel.
fn is_kernel(above: &[&str]) -> bool {
    let attached = |line: &&&str| {
        let line = line.trim_start();
        line.starts_with("//") || line.starts_with('#') || line.starts_with("unsafe(")
    };
    above.iter().rev().take_while(attached).any(|line| {
        line.trim_start().strip_prefix(KERNEL).is_some_and(|reason| !reason.trim().is_empty())
    })
}

/// Columns. A message in one piece can be searched for, so a literal may cross the edge; so may a
/// table, an output and a link in Markdown.
pub fn width(file: &File) -> Vec<Finding> {
    let checked = [".rs", ".md", ".py", ".sh"].iter().any(|e| file.path.ends_with(e))
        || file.path == ".ci/run";
    if !checked || file.is_made() {
        return Vec::new();
    }
    let kinds = if file.is_rust() { source::kinds(&file.text) } else { Vec::new() };
    let (mut start, mut fenced) = (0, false);
    let mut findings = Vec::new();
    for (number, line) in file.lines() {
        fenced ^= line.starts_with("```");
        let count = line.chars().count();
        let in_literal = kinds.get(start + COLUMNS_MAX) == Some(&Kind::Literal);
        let free = fenced || line.starts_with('|') || line.contains("://");
        if count > COLUMNS_MAX && !in_literal && !free {
            findings.push(file.fault(number, format!("{count} columns, over {COLUMNS_MAX}")));
        }
        start += count + 1;
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn a_file_is_warned_of_and_then_refused() {
        let long = |lines| file(&planted("a.rs", &"x\n".repeat(lines)));
        assert!(long(700).is_empty());
        assert!(matches!(&long(701)[..], [one] if !one.fatal));
        assert!(matches!(&long(1_001)[..], [one] if one.fatal));
    }

    #[test]
    fn a_long_function_is_refused_by_its_first_line() {
        let text = format!("{}\n{}", function(70), function(71));
        let found = functions(&planted("a.rs", &text));
        assert!(matches!(&found[..], [one] if one.line == 72), "{found:?}");
    }

    #[test]
    fn braces_in_literals_and_comments_do_not_end_a_function() {
        let text = format!("fn a() {{ \"}}\"; '}}'; /* }} */\n{}}}\n", "x();\n".repeat(80));
        assert_eq!(functions(&planted("a.rs", &text)).len(), 1);
    }

    #[test]
    fn a_kernel_is_exempt_with_a_reason_and_not_without() {
        let marked = |mark: &str| planted("a.rs", &format!("{mark}\n#[inline]\n{}", function(90)));
        assert!(functions(&marked("// tidy: kernel, one tile of registers")).is_empty());
        assert_eq!(functions(&marked("// tidy: kernel, ")).len(), 1);
    }

    #[test]
    fn function_types_and_declarations_have_no_body() {
        let text = format!("type F = fn(u8);\ntrait T {{ fn f();\n{}}}\n", "// x\n".repeat(90));
        assert!(functions(&planted("a.rs", &text)).is_empty());
    }

    #[test]
    fn a_wide_line_is_refused_unless_a_literal_crosses_the_edge() {
        let wide = |text: &str| width(&planted("a.rs", text)).len();
        assert_eq!(wide(&format!("// {}", "x".repeat(98))), 1);
        assert_eq!(wide(&format!("call({});", "x".repeat(95))), 1);
        assert_eq!(wide(&format!("call(\"{}\");", "x".repeat(98))), 0);
        let document = |text: &str| width(&planted("a.md", text)).len();
        let long = "x".repeat(101);
        assert_eq!(document(&long), 1);
        assert_eq!(document(&format!("```text\n{long}\n```\n{long}\n")), 1);
    }
}
