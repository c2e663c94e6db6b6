//! Keeps a template's values flat. A namespace is the only thing that a template can change, so
//! through one alone can values grow a level a turn of a loop, or hold themselves; and whatever
//! walks or frees a value takes stack for each of its levels.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// The filter that every value on its way into a namespace passes.
pub(crate) const FILTER: &str = "__plain";
/// Lists and maps inside each other; requests have at most 128 levels.
const LEVELS_MAX: u32 = 200;
/// Bytes that a step of the template's budget pays for, as the engine counts.
pub(crate) const STEP_BYTES: usize = 64;

/// Adds [`FILTER`] to each `{% set a.b = ... %}` of a template. Lines keep their numbers.
pub(crate) fn guard_namespaces(source: &str, syntax: &SyntaxConfig) -> String {
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    let (mut place, mut from) = (Place::Outside, 0);
    for token in tokenize(source, false, syntax.clone()) {
        // The compiler says what is wrong here, and where.
        let Ok((token, span)) = token else { break };
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        place = match (place, token) {
            (_, Token::BlockStart) => Place::Start,
            (Place::Start, Token::Ident("set")) => Place::Target { dotted: false },
            (Place::Target { .. }, Token::Dot) => Place::Target { dotted: true },
            (Place::Target { dotted: true }, Token::Assign) => {
                from = end;
                Place::Value
            }
            (Place::Value, Token::BlockEnd) => {
                let value = &source[from..start];
                out.push_str(&source[copied..from]);
                out.push_str(&format!(" ({value})|{FILTER} "));
                copied = start;
                Place::Outside
            }
            (Place::Start | Place::Target { .. }, Token::Assign | Token::BlockEnd)
            | (Place::Start, _) => Place::Outside,
            (place, _) => place,
        };
    }
    out + &source[copied..]
}

/// Where a token stands.
#[derive(Clone, Copy)]
enum Place {
    Outside,
    /// After the start of a block.
    Start,
    /// Between `set` and `=`.
    Target {
        dotted: bool,
    },
    /// Between `=` and the end of the block.
    Value,
}

/// A copy of plain data: scalars, and lists and maps of plain data. Costs a step an item and a step
/// for every [`STEP_BYTES`] of text.
///
/// # Errors
/// For macros, modules and the like, past [`LEVELS_MAX`], and when the steps run out.
pub(crate) fn plain(state: &State, value: Value) -> Result<Value, Error> {
    copy(state, value, LEVELS_MAX)
}

fn copy(state: &State, value: Value, levels: u32) -> Result<Value, Error> {
    let bytes = value.as_bytes().map_or(0, <[u8]>::len);
    state.consume_fuel(1 + (bytes / STEP_BYTES) as u64)?;
    let refuse = |what: String| Err(Error::new(ErrorKind::InvalidOperation, what));
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable if levels == 0 => {
            refuse(format!("more than {LEVELS_MAX} lists and maps inside each other"))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.checked();
            let items = items.map(|item| copy(state, item?, levels - 1));
            Ok(Value::from(items.collect::<Result<Vec<_>, _>>()?))
        }
        ValueKind::Map => {
            let keys = value.try_iter()?.checked();
            let pairs = keys.map(|key| {
                let key = key?;
                let item = value.get_item(&key)?;
                Ok((copy(state, key, levels - 1)?, copy(state, item, levels - 1)?))
            });
            let pairs = pairs.collect::<Result<Vec<(Value, Value)>, Error>>()?;
            Ok(Value::from(Serde(Pairs(pairs))))
        }
        ValueKind::Plain => refuse("expected plain data, found an object".to_owned()),
        _ => Ok(value),
    }
}

/// A map on its way through the engine's serialiser, which keeps values as they are.
struct Pairs(Vec<(Value, Value)>);

impl serde::Serialize for Pairs {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn guarded(source: &str) -> String {
        let mut syntax = SyntaxConfig::builder();
        let syntax = syntax.trim_blocks(true).lstrip_blocks(true).build().unwrap();
        guard_namespaces(source, &syntax)
    }

    #[test]
    fn values_on_their_way_into_a_namespace_pass_the_filter() {
        for (source, expected) in [
            ("a {%- set ns.x = '%}' ~ y -%} b", "a {%- set ns.x = ( '%}' ~ y )|__plain -%} b"),
            ("{% set ns.x, y = 1, 2 %}", "{% set ns.x, y = ( 1, 2 )|__plain %}"),
            ("{% set ns.x=[1]+%}", "{% set ns.x= ([1])|__plain +%}"),
        ] {
            assert_eq!(guarded(source), expected);
        }
    }

    #[test]
    fn everything_else_stays_as_it_is() {
        for source in [
            "{% set x = ns.y %}{% set ns.x %}y{% endset %}",
            "{% raw %}{% set ns.x = 1 %}{% endraw %}{# {% set ns.x = 1 %} #}",
            "{{ '{% set ns.x = 1 %}' }}",
            "{% if a.b == c %}{% endif %}{% set ns.x = ",
        ] {
            assert_eq!(guarded(source), source);
        }
    }
}
