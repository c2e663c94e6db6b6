use baton_grammar::{Body, GrammarError, Grammars, SOURCE_BYTES_MAX};
use serde_json::json;
use text::Text;

use super::{form, refused, reply};

#[test]
fn what_does_not_compile_says_why() {
    for body in [
        Body::Regex("[".into()),
        Body::Lark("start: missing".into()),
        Body::Json(json!({"type": "no such type"})),
    ] {
        let error = refused(&form(body.clone()));
        assert!(matches!(error, GrammarError::Compile(_)), "{body:?}: {error}");
    }
}

#[test]
fn a_grammar_that_is_too_long_is_refused_before_it_is_compiled() {
    let error = refused(&form(Body::Regex("a".repeat(SOURCE_BYTES_MAX))));
    assert!(matches!(error, GrammarError::Long { .. }), "{error}");
}

#[test]
fn two_replies_of_one_grammar_do_not_meet() {
    let text = Text::byte_level();
    let grammars = Grammars::new(&text).unwrap();
    let grammar = grammars.compile(&form(Body::Choice(vec!["ab".into(), "cd".into()]))).unwrap();
    let (mut one, mut two) = (grammar.start(), grammar.start());
    one.push(u32::from(b'a'));
    assert_eq!(reply(&mut *two, text.vocab(), "cd", 1).unwrap(), "cd");
    assert_eq!(reply(&mut *one, text.vocab(), "b", 1).unwrap(), "b");
}
