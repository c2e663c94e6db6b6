//! A PTX text as words.

/// A word and its line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Word {
    pub line: u32,
    pub text: String,
}

/// Takes a text apart. A name keeps what is joined to it by `.` and `::`.
pub(super) fn words(text: &str) -> Vec<Word> {
    let bytes = text.as_bytes();
    let (mut at, mut line, mut words) = (0, 1, Vec::new());
    while at < bytes.len() {
        let rest = &bytes[at..];
        let length = match rest[0] {
            b'\n' => {
                line += 1;
                at += 1;
                continue;
            }
            b' ' | b'\t' | b'\r' => {
                at += 1;
                continue;
            }
            b'/' if rest.starts_with(b"//") => {
                at += until(rest, b"\n");
                continue;
            }
            b'/' if rest.starts_with(b"/*") => {
                let length = until(rest, b"*/");
                line += rest[..length].iter().filter(|&&byte| byte == b'\n').count() as u32;
                at += (length + 2).min(rest.len());
                continue;
            }
            b'"' => (2 + until(&rest[1..], b"\"")).min(rest.len()),
            byte if is_name(byte) || byte == b'.' => name(rest),
            _ => 1,
        };
        let text = String::from_utf8_lossy(&rest[..length]).into_owned();
        words.push(Word { line, text });
        at += length;
    }
    words
}

/// Where `end` is in `bytes`, or their length.
fn until(bytes: &[u8], end: &[u8]) -> usize {
    bytes.windows(end.len()).position(|window| window == end).unwrap_or(bytes.len())
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%')
}

fn name(bytes: &[u8]) -> usize {
    let mut length = 1;
    while let Some(&byte) = bytes.get(length) {
        if is_name(byte) || byte == b'.' {
            length += 1;
        } else if bytes[length..].starts_with(b"::") {
            length += 2;
        } else {
            break;
        }
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_dots_and_double_colons_and_labels_do_not() {
        let found =
            words("L:\tcp.async.bulk.shared::cta [%r1+4], 0f3F800000; // end\n@!%p1 bra L;");
        let texts: Vec<&str> = found.iter().map(|word| word.text.as_str()).collect();
        let first = ["L", ":", "cp.async.bulk.shared::cta", "[", "%r1", "+", "4", "]", ","];
        assert_eq!(texts[..9], first);
        assert_eq!(texts[9..], ["0f3F800000", ";", "@", "!", "%p1", "bra", "L", ";"]);
        assert_eq!((found[0].line, found[11].line), (1, 2));
    }
}
