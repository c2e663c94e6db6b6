//! Rust source with comments and literals told apart from code. No parser: just enough for rules
//! that count lines and look for words.

/// What a character belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Code proper.
    Code,
    /// A comment, its marks included.
    Comment,
    /// A string or character literal, its quotes included.
    Literal,
}

/// The kind of every character of `text`.
pub fn kinds(text: &str) -> Vec<Kind> {
    let chars: Vec<char> = text.chars().collect();
    let mut kinds = Vec::with_capacity(chars.len());
    while kinds.len() < chars.len() {
        let at = kinds.len();
        let (kind, length) = token(&chars, at);
        kinds.resize((at + length).min(chars.len()), kind);
    }
    kinds
}

/// `text` with everything but code blanked out; lines keep their numbers.
pub fn code(text: &str) -> String {
    let blank = |(c, kind)| {
        if kind == Kind::Code || c == '\n' { c } else { ' ' }
    };
    text.chars().zip(kinds(text)).map(blank).collect()
}

/// Whether `c` may stand in an identifier.
pub fn in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The offsets at which `word` stands alone in `text`.
pub fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(in_word) && !after.is_some_and(in_word)
    })
}

/// The line, from 1, of a byte offset.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text[..offset].matches('\n').count()
}

/// The kind and the length of what begins at `at`.
fn token(chars: &[char], at: usize) -> (Kind, usize) {
    let next = |n: usize| chars.get(at + n).copied().unwrap_or('\0');
    match (chars[at], next(1)) {
        ('/', '/') => (Kind::Comment, until(chars, at, |c| c == '\n')),
        ('/', '*') => (Kind::Comment, block(chars, at)),
        ('"', _) => (Kind::Literal, string(chars, at)),
        ('\'', '\\') => (Kind::Literal, 3 + until(chars, at + 3, |c| c == '\'') + 1),
        ('\'', _) if next(2) == '\'' => (Kind::Literal, 3),
        (c, _) if in_word(c) => word(chars, at),
        _ => (Kind::Code, 1),
    }
}

/// An identifier or number, or the raw string that begins like one.
fn word(chars: &[char], at: usize) -> (Kind, usize) {
    let length = until(chars, at, |c| !in_word(c));
    let prefix: String = chars[at..at + length].iter().collect();
    let hashes = until(chars, at + length, |c| c != '#');
    let opens = chars.get(at + length + hashes) == Some(&'"');
    if !opens || !matches!(prefix.as_str(), "r" | "br" | "cr") {
        return (Kind::Code, length);
    }
    let end: Vec<char> = std::iter::once('"').chain(vec!['#'; hashes]).collect();
    let body = at + length + hashes + 1;
    let rest = chars[body..].windows(end.len()).position(|w| w == end);
    (Kind::Literal, rest.map_or(chars.len() - at, |n| body + n + end.len() - at))
}

/// Characters from `at` on before the first that `stop` takes.
fn until(chars: &[char], at: usize, stop: impl Fn(char) -> bool) -> usize {
    chars.iter().skip(at).take_while(|&&c| !stop(c)).count()
}

fn string(chars: &[char], at: usize) -> usize {
    let mut length = 1;
    while let Some(&c) = chars.get(at + length) {
        match c {
            '"' => return length + 1,
            '\\' => length += 2,
            _ => length += 1,
        }
    }
    length
}

/// Block comments nest.
fn block(chars: &[char], at: usize) -> usize {
    let (mut depth, mut length) = (0, 0);
    while at + length < chars.len() {
        let next = chars.get(at + length + 1).copied().unwrap_or('\0');
        match (chars[at + length], next) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                length += 1;
                continue;
            }
        }
        length += 2;
        if depth == 0 {
            break;
        }
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_code_stays() {
        let text = "a /* b /* c */ d */ e // f\n\"g \\\" h\" i r#\"j \" k\"# 'l' '\\'' 'm \"{\" n";
        let left: Vec<_> = code(text).split_whitespace().map(str::to_owned).collect();
        assert_eq!(left, ["a", "e", "i", "'m", "n"]);
    }

    #[test]
    fn lines_keep_their_numbers_and_their_widths() {
        let text = "x // é\n/* two\nlines */ \"and\na string\" y\n";
        assert_eq!(code(text).matches('\n').count(), 4);
        assert_eq!(code(text).chars().count(), text.chars().count());
    }

    #[test]
    fn a_word_stands_alone() {
        let found: Vec<_> = words("unsafe_code unsafe(unsafely) unsafe", "unsafe").collect();
        assert_eq!(found, [12, 29]);
    }
}
