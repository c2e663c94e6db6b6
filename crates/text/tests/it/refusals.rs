//! Model folders that are refused, each by file, key, what was expected and what was found.

use proptest::prelude::*;
use serde_json::{Value, json};
use text::TextError;

use crate::folder::{Folder, changed, configured, says, templating, tokenizer};

#[test]
fn what_is_not_byte_level_bpe_is_refused_by_name() {
    let set = |path: &str, value: Value| {
        let folder = changed(|json| {
            let (parent, key) = path.rsplit_once('/').unwrap();
            json.pointer_mut(parent).unwrap()[key] = value;
        });
        folder.text()
    };
    let step = |kind: &str| json!({"type": kind});
    let unigram = json!({"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0]]});
    says(set("/model", unigram), &["`tokenizer.json`: `model.type`", "`BPE`", "found `Unigram`"]);
    let word_piece = json!({"vocab": {"a": 0}, "type": "WordPiece"});
    says(set("/model", word_piece), &["found `WordPiece`"]);
    says(set("/model", json!({"vocab": {"a": 0}})), &["`model.type`", "found `none`"]);
    says(set("/model/dropout", json!(0.1)), &["`model.dropout`", "found 0.1"]);
    says(set("/model/end_of_word_suffix", json!("</w>")), &["end_of_word_suffix", "`</w>`"]);
    says(set("/model/continuing_subword_prefix", json!("##")), &["subword_prefix", "`##`"]);
    says(set("/model/unk_token", json!("<?>")), &["`model.unk_token`", "`<?>`"]);
    for kind in ["Lowercase", "NFKC", "Prepend", "ByteLevel"] {
        says(set("/normalizer", step(kind)), &["`normalizer`: expected none or `NFC`", kind]);
    }
    for kind in ["Metaspace", "Whitespace", "BertPreTokenizer", "Nonesuch"] {
        says(set("/pre_tokenizer", step(kind)), &["`pre_tokenizer`", "`Split`", kind]);
    }
    says(set("/pre_tokenizer", json!(null)), &["one step `ByteLevel`", "0 of 0 steps"]);
    let digits = json!({"type": "Digits", "individual_digits": true});
    says(set("/pre_tokenizer", digits), &["byte-level", "0 of 1 steps"]);
    says(set("/pre_tokenizer/add_prefix_space", json!(true)), &["`add_prefix_space` false"]);
    let removed = json!({"type": "Split", "pattern": {"String": "q"}, "behavior": "Removed",
        "invert": false});
    says(set("/pre_tokenizer", removed), &["`Split` that keeps all text", "`q`"]);
    let punctuation = json!({"type": "Punctuation", "behavior": "Removed"});
    says(set("/pre_tokenizer", punctuation), &["`Punctuation` that keeps all text"]);
    let regex = |pattern: String| {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
            "invert": false})
    };
    says(set("/pre_tokenizer", regex("(".to_owned())), &["`pre_tokenizer`: `Split`"]);
    says(set("/pre_tokenizer", regex("a".repeat(4_097))), &["at most 4096 bytes", "4097"]);
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true});
    let twice = json!({"type": "Sequence", "pretokenizers": [bytes, bytes]});
    says(set("/pre_tokenizer", twice), &["one step `ByteLevel`", "2 of 2 steps"]);
    let many = json!({"type": "Sequence", "pretokenizers": vec![step("Digits"); 33]});
    says(set("/pre_tokenizer", many), &["at most 32 steps"]);
    says(set("/post_processor", step("RobertaProcessing")), &["`post_processor`", "Roberta"]);
    says(set("/post_processor", templating(json!([1, 2]))), &["at most one token", "found 2"]);
    says(set("/post_processor", templating(json!([999]))), &["`post_processor`", "found 999"]);
    says(set("/post_processor", templating(json!([]))), &["`ids` of `<s>`"]);
}

#[test]
fn tokens_that_contradict_each_other_are_refused_by_name() {
    let with = |change: &dyn Fn(&mut Value), parts: &[&str]| says(changed(change).text(), parts);
    with(
        &|j| j["model"]["vocab"]["b"] = json!(97),
        &["`model.vocab`", "`a` alone at id 97", "`b`"],
    );
    with(&|j| j["model"]["vocab"]["b"] = json!(1 << 20), &["below 1048576", "1048576 of `b`"]);
    with(&|j| j["model"]["vocab"]["b"] = json!(-1), &["`tokenizer.json`", "`-1`", "u32"]);
    with(&|j| j["model"]["vocab"]["b"] = json!(1u64 << 40), &["1099511627776", "u32"]);
    with(&|j| j["model"]["vocab"] = json!([]), &["object of ids as `model.vocab`"]);
    with(&|j| j["model"]["merges"] = json!(["a b", "ab zz"]), &["merge 1 (`ab zz`)"]);
    with(&|j| j["model"]["merges"] = json!([["b", "c"]]), &["merge 0 (`b c`)"]);
    for merge in [json!("ab"), json!("a b c"), json!(["a"]), json!(["a", "b", "c"]), json!(3)] {
        with(&|j| j["model"]["merges"] = json!([merge]), &["two texts", "`model.merges`"]);
    }
    with(&|j| j["added_tokens"][0]["id"] = json!(97), &["`added_tokens`", "`a` alone", "`<s>`"]);
    with(&|j| j["added_tokens"][0]["id"] = json!(259), &["`<s>` alone at id 259", "`</s>`"]);
    with(&|j| j["added_tokens"][0]["content"] = json!("ab"), &["the id 256 that `ab`", "258"]);
    with(&|j| j["added_tokens"][1]["content"] = json!("<s>"), &["the id 258 that `<s>`", "259"]);
    for flag in ["lstrip", "rstrip", "single_word"] {
        with(&|j| j["added_tokens"][2][flag] = json!(true), &[flag, "true for `[x]`"]);
    }
    let fallback = |j: &mut Value| {
        j["model"]["byte_fallback"] = json!(true);
        j["model"]["vocab"].as_object_mut().unwrap().remove("q");
    };
    with(&fallback, &["`model.byte_fallback`", "1 of them missing"]);
    let twice = tokenizer().to_string().replacen(r#""vocab":{"#, r#""vocab":{"ab":256,"#, 1);
    let folder = Folder::new().with("tokenizer.json", twice);
    says(folder.text(), &["each token once", "`ab` as 256 and 256"]);
    // Gaps are no error: no id in them is a token.
    let far = changed(|json| json["added_tokens"][2]["id"] = json!(1_000)).text().unwrap();
    assert_eq!((far.vocab(), far.token_bytes(999)), (1_001, &b""[..]));
    assert_eq!(far.encode("[x]").unwrap(), [1_000]);
}

#[test]
fn settings_of_another_form_are_refused_with_file_and_key() {
    let config = |json: Value, parts: &[&str]| {
        says(configured(json).text(), &[&["`tokenizer_config.json`"], parts].concat());
    };
    config(json!([]), &["an object", "an array"]);
    config(json!({"bos_token": 3}), &["`bos_token`", "a number"]);
    config(json!({"eos_token": "<nosuch>"}), &["`eos_token`", "`<nosuch>`"]);
    config(json!({"add_bos_token": "yes"}), &["`add_bos_token`: expected a bool, found a string"]);
    config(json!({"chat_template": 3}), &["`chat_template`", "a number"]);
    config(json!({"added_tokens_decoder": []}), &["`added_tokens_decoder`", "an array"]);
    config(json!({"additional_special_tokens": 1}), &["`additional_special_tokens`"]);
    for (ids, part) in [
        (json!(261), "expected an id below 261, found 261"),
        (json!([1, -1]), "found -1"),
        (json!("7"), "found a string"),
        (json!({}), "found an object"),
        (json!(vec![1; 65]), "expected at most 64 ids, found 65"),
    ] {
        let json = json!({"eos_token_id": ids}).to_string();
        let folder = changed(|_| ()).with("generation_config.json", &json);
        says(folder.text(), &["`generation_config.json`: `eos_token_id`", part]);
        let json = json!({"text_config": {"eos_token_id": ids}}).to_string();
        let folder = changed(|_| ()).with("config.json", json);
        says(folder.text(), &["`config.json`: `text_config.eos_token_id`", part]);
    }
    let broken = changed(|_| ()).with("chat_template.jinja", "{% for %}");
    assert!(matches!(broken.text(), Err(TextError::TemplateSyntax { .. })));
    let long = changed(|_| ()).with("chat_template.jinja", " ".repeat((64 << 10) + 1));
    assert!(matches!(long.text(), Err(TextError::TemplateBytes { .. })));
}

#[test]
fn files_that_are_missing_too_long_or_no_text_are_refused_by_name() {
    says(Folder::new().text(), &["has no `tokenizer.json`"]);
    let folder = Folder::new();
    std::fs::create_dir(folder.0.join("tokenizer.json")).unwrap();
    says(folder.text(), &["`tokenizer.json` of", "cannot be read: it is no file"]);
    let sparse = |file: &str, bytes: u64| {
        let folder = if file == "tokenizer.json" { Folder::new() } else { changed(|_| ()) };
        std::fs::File::create(folder.0.join(file)).unwrap().set_len(bytes).unwrap();
        folder.text()
    };
    says(sparse("tokenizer.json", (64 << 20) + 1), &["has 67108865 bytes", "limit of 67108864"]);
    for file in ["tokenizer_config.json", "generation_config.json", "chat_template.jinja"] {
        says(sparse(file, (4 << 20) + 1), &[file, "4194305 bytes", "limit of 4194304"]);
    }
    let of = |bytes: &[u8]| Folder::new().with("tokenizer.json", bytes).text();
    says(of(b""), &["`tokenizer.json`: EOF"]);
    says(of(b"{}"), &["`model`: expected an object, found none"]);
    says(of(b"\xff\xfe"), &["`tokenizer.json`", "line 1"]);
    says(of(b"{\"model\": {\"type\": \"\xff\"}}"), &["`tokenizer.json`", "line 1"]);
    let deep = |key: &str, levels: usize| {
        let value = "[".repeat(levels) + &"]".repeat(levels);
        let json = tokenizer().to_string();
        let cut = json.find(&format!("\"{key}\":")).unwrap() + key.len() + 3;
        // The old value stays behind under a name that nobody reads.
        of(format!("{}{value},\"old\":{}", &json[..cut], &json[cut..]).as_bytes())
    };
    says(deep("normalizer", 1_000), &["`tokenizer.json`: `normalizer`: recursion limit exceeded"]);
    says(
        deep("normalizer", 100_000),
        &["`normalizer`: expected at most 65536 bytes, found 200000"],
    );
    assert!(deep("version", 100_000).is_ok());
    let nested = "{\"type\":\"Sequence\",\"pretokenizers\":[".repeat(70) + &"]}".repeat(70);
    let json = tokenizer().to_string().replacen("\"pre_tokenizer\":", "\"old\":", 1);
    says(
        of(json.replacen('{', &format!("{{\"pre_tokenizer\":{nested},"), 1).as_bytes()),
        &["recursion limit exceeded"],
    );
    let bad = changed(|_| ()).with("chat_template.jinja", b"ab\xff");
    says(bad.text(), &["`chat_template.jinja`: expected UTF-8, found other bytes at 2"]);
    let bad = changed(|_| ()).with("tokenizer_config.json", b"{");
    says(bad.text(), &["`tokenizer_config.json`: EOF"]);
}

#[test]
fn an_error_shows_the_start_of_what_it_found() {
    let long = "x".repeat(100_000);
    let eos = configured(json!({"eos_token": long, "bos_token": "<s>"}));
    let kind = changed(|json| json["pre_tokenizer"]["type"] = json!("x".repeat(50_000)));
    let merge = changed(|json| json["model"]["merges"] = json!([long]));
    let key = configured(json!({"added_tokens_decoder": {long.clone(): {}}}));
    for folder in [eos, kind, merge, key] {
        let said = folder.text().unwrap_err().to_string();
        assert!(said.contains("xxx") && said.len() < 2_000, "{} bytes", said.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_tokenizer_with_any_bytes_changed_is_one_or_an_error(
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<u8>(), 0..4usize),
            1..4,
        ),
    ) {
        let mut bytes = tokenizer().to_string().into_bytes();
        for (index, byte, cut) in changes {
            let at = index.index(bytes.len() - 4);
            // Mostly what means something in JSON.
            let new = *b"{}[],:\"0129-etx\\".get(usize::from(byte % 32)).unwrap_or(&byte);
            bytes.splice(at..at + cut, [new]);
        }
        match Folder::new().with("tokenizer.json", &bytes).text() {
            Ok(text) => {
                let ids = text.encode("abc<s> [x]\u{e9}").unwrap();
                prop_assert!(ids.iter().all(|&id| (id as usize) < text.vocab()));
            }
            Err(error) => prop_assert!(error.to_string().len() < 2_000),
        }
    }
}
