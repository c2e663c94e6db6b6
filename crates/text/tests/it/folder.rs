//! Tokenizers from model folders: real ones against the reference and against GGUF, written ones
//! for every form that models come in.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use text::{Text, TextError};
use weights::Checkpoint;
use weights::gguf::Header;
use weights::synthetic::byte_char;

use crate::{golden, ids, metadata};

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A folder that goes away with its test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("folder-{}-{count}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn with(self, file: &str, content: impl AsRef<[u8]>) -> Self {
        std::fs::write(self.0.join(file), content).unwrap();
        self
    }

    pub(crate) fn text(&self) -> Result<Text, TextError> {
        Text::from_folder(&self.0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A byte-level tokenizer: 256 bytes, `ab` = 256 and `abc` = 257, then the special `<s>` = 258 and
/// `</s>` = 259 and `[x]` = 260, which is taken whole and shown.
pub(crate) fn tokenizer() -> Value {
    let mut vocab: Map<String, Value> =
        (0..=255u8).map(|byte| (byte_char(byte).to_string(), json!(byte))).collect();
    vocab.insert("ab".to_owned(), json!(256));
    vocab.insert("abc".to_owned(), json!(257));
    let added = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "special": special, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false})
    };
    json!({
        "version": "1.0",
        "added_tokens": [
            added(258, "<s>", true), added(259, "</s>", true), added(260, "[x]", false)],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": true},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b", "ab c"]},
    })
}

/// The folder of [`tokenizer`] after a change.
pub(crate) fn changed(change: impl FnOnce(&mut Value)) -> Folder {
    let mut json = tokenizer();
    change(&mut json);
    Folder::new().with("tokenizer.json", json.to_string())
}

pub(crate) fn configured(config: Value) -> Folder {
    changed(|_| ()).with("tokenizer_config.json", config.to_string())
}

pub(crate) fn templating(ids: Value) -> Value {
    json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": ids, "tokens": ["<s>"]}}})
}

#[track_caller]
pub(crate) fn says(result: Result<Text, TextError>, parts: &[&str]) {
    let said = result.unwrap_err().to_string();
    assert!(said.len() < 500, "{said}");
    for part in parts {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
}

fn spelt(text: &Text, ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| text.token_bytes(id)).copied().collect();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn the_qwen35_folders_and_their_gguf_give_the_ids_and_ends_of_the_reference() {
    let cases = &golden("tiny-qwen3_5/oracles/tiny-qwen3_5.json")["tokenizer"];
    let folder = |name| Text::from_folder(&repository(name)).unwrap();
    let file = std::fs::read(repository("golden/tiny-qwen3_5/tiny-qwen3_5-bf16.gguf")).unwrap();
    let gguf = Text::from_metadata(&Header::parse(&file).unwrap().metadata).unwrap();
    let messages = [json!({"role": "user", "content": "héllo\n"})];
    for text in [
        folder("golden/tiny-qwen3_5/tiny-qwen3_5"),
        folder("golden/tiny-qwen3_5/tiny-qwen3_5-mlx4"),
        gguf,
    ] {
        for case in cases.as_array().unwrap() {
            let found = text.encode(case["text"].as_str().unwrap()).unwrap();
            assert_eq!(found, ids(&case["ids"]), "{}", case["text"]);
            assert_eq!(spelt(&text, &found), case["decoded"].as_str().unwrap());
        }
        assert_eq!((text.vocab(), text.stop_tokens()), (512, &[506, 508][..]));
        assert!(text.is_control(505) && !text.is_control(403));
        assert!(text.notes().is_empty(), "{:?}", text.notes());
        assert_eq!(
            text.render(&messages, true, &Map::new()).unwrap(),
            "<|im_start|>user\nhéllo\n<|im_end|>\n<|im_start|>assistant\n"
        );
        // Ids between the tokenizer's last and the logits' last are harmless.
        assert_eq!((text.token_bytes(600), text.is_control(600)), (&b""[..], false));
        assert_eq!(text.detokenizer().push(600), "");
    }
}

fn baton_tiny() -> Text {
    let checkpoint = Checkpoint::open(&repository("models/baton-tiny")).unwrap();
    Text::from_checkpoint(&checkpoint).unwrap()
}

/// The same tokenizer as a GGUF file would hold it.
fn baton_tiny_as_gguf() -> Text {
    let json = json_of(&repository("models/baton-tiny/tokenizer.json"));
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![String::new(); 4_096];
    let mut types = vec![1; 4_096];
    for (token, id) in vocab {
        tokens[id.as_u64().unwrap() as usize].clone_from(token);
    }
    for added in json["added_tokens"].as_array().unwrap() {
        let id = added["id"].as_u64().unwrap() as usize;
        (tokens[id], types[id]) = (added["content"].as_str().unwrap().to_owned(), 3);
    }
    let merges = json["model"]["merges"].as_array().unwrap().iter();
    let merges: Vec<String> =
        merges.map(|m| format!("{} {}", m[0].as_str().unwrap(), m[1].as_str().unwrap())).collect();
    Text::from_metadata(&metadata(|w| {
        w.string("tokenizer.ggml.model", "gpt2")
            .string("tokenizer.ggml.pre", "qwen35")
            .strings("tokenizer.ggml.tokens", &tokens)
            .i32s("tokenizer.ggml.token_type", &types)
            .strings("tokenizer.ggml.merges", &merges)
            .u32("tokenizer.ggml.eos_token_id", 4_094);
    }))
    .unwrap()
}

#[test]
fn baton_tiny_tokenizes_and_renders_as_transformers_does() {
    let (text, gguf) = (baton_tiny(), baton_tiny_as_gguf());
    let golden = golden("baton-tiny-text/cases.json");
    for case in golden["cases"].as_array().unwrap() {
        let input = case["text"].as_str().unwrap();
        assert_eq!(text.encode(input).unwrap(), ids(&case["ids"]), "{input:?}");
        assert_eq!(gguf.encode(input).unwrap(), ids(&case["ids"]), "{input:?} from GGUF");
    }
    for chat in golden["chats"].as_array().unwrap() {
        let messages = chat["messages"].as_array().unwrap();
        let add = chat["add_generation_prompt"].as_bool().unwrap();
        let prompt = text.render(messages, add, &Map::new()).unwrap();
        assert_eq!(prompt, chat["text"].as_str().unwrap());
    }
    assert_eq!((text.vocab(), text.stop_tokens()), (4_096, &[4_092, 4_094][..]));
    assert_eq!((gguf.vocab(), gguf.stop_tokens()), (4_096, &[4_092, 4_094][..]));
    assert!((4_092..4_096).all(|id| text.is_control(id)) && !text.is_control(4_091));
    assert_eq!(text.encode_plain("<|mask|>").unwrap(), gguf.encode_plain("<|mask|>").unwrap());
    assert!(!text.encode_plain("<|mask|>").unwrap().contains(&4_095));
    assert!(text.notes().is_empty(), "{:?}", text.notes());
}

#[test]
#[ignore = "compares with what golden/baton-tiny-text/make_cases.py --random printed"]
fn texts_of_a_file_tokenize_as_transformers_does() {
    let path = std::env::var_os("BATON_TEXTS").expect("BATON_TEXTS names the file");
    let text = baton_tiny();
    let golden = json_of(Path::new(&path));
    let cases = golden["cases"].as_array().unwrap();
    for case in cases {
        let input = case["text"].as_str().unwrap();
        assert_eq!(text.encode(input).unwrap(), ids(&case["ids"]), "{input:?}");
    }
    println!("{} texts", cases.len());
}

#[test]
fn a_folder_works_with_its_tokenizer_alone() {
    let text = changed(|_| ()).text().unwrap();
    assert_eq!(text.encode("abc<s>[x]b").unwrap(), [257, 258, 260, 98]);
    assert_eq!(text.encode_plain("<s>[x]").unwrap(), [60, 115, 62, 260]);
    assert_eq!((text.vocab(), text.stop_tokens()), (261, &[][..]));
    assert!(text.is_control(258) && !text.is_control(260));
    let notes = text.notes().join("; ");
    assert!(notes.contains("no stop token") && notes.contains("using ChatML"), "{notes}");
}

#[test]
fn merges_may_be_pairs_and_old_files_tell_no_type() {
    let pairs = changed(|json| {
        json["model"]["merges"] = json!([["a", "b"], ["ab", "c"]]);
        json["model"].as_object_mut().unwrap().remove("type");
        json["model"]["unk_token"] = json!("");
        json["model"]["end_of_word_suffix"] = json!("");
    });
    assert_eq!(pairs.text().unwrap().encode("abc").unwrap(), [257]);
}

#[test]
fn words_are_cut_and_normalised_as_the_file_says() {
    let split = |regex: &str, behavior: &str, invert: bool| {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert},
            {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "use_regex": false,
                "add_prefix_space": false, "trim_offsets": true}]}]})
    };
    let encode =
        |change: &dyn Fn(&mut Value), input| changed(change).text().unwrap().encode(input).unwrap();
    let cut = |step: Value, input| encode(&|json| json["pre_tokenizer"] = step.clone(), input);
    assert_eq!(cut(split("b", "Isolated", false), "abc"), [97, 98, 99]);
    assert_eq!(cut(split("b", "MergedWithPrevious", false), "abc"), [256, 99]);
    assert_eq!(cut(split(".*", "Removed", true), "abc"), [257]);
    let nfc = |json: &mut Value| {
        let steps = json!([{"type": "NFC"}]);
        json["normalizer"] = json!({"type": "Sequence", "normalizers": steps});
    };
    assert_eq!(encode(&nfc, "e\u{301}"), [0xc3, 0xa9]);
    assert_eq!(encode(&|_| (), "e\u{301}"), [0x65, 0xcc, 0x81]);
    // `abc` is a token that the merges never reach.
    let merges = |json: &mut Value| json["model"]["merges"] = json!(["a b"]);
    assert_eq!(encode(&merges, "abc"), [256, 99]);
    let whole = |json: &mut Value| {
        merges(json);
        json["model"]["ignore_merges"] = json!(true);
    };
    assert_eq!(encode(&whole, "abc"), [257]);
}

#[test]
fn bytes_that_are_no_tokens_are_noted_and_may_be_unknown() {
    let without = |unknown: bool| {
        let folder = changed(|json| {
            json["model"]["vocab"].as_object_mut().unwrap().remove("q");
            if unknown {
                json["model"]["unk_token"] = json!("z");
            }
        });
        folder.text().unwrap()
    };
    // What is left out parts no words.
    assert_eq!(without(false).encode("aqqb").unwrap(), [256]);
    assert_eq!(without(true).encode("aqqb").unwrap(), [97, 122, 122, 98]);
    assert!(without(false).notes().join(";").contains("1 of 256 bytes are no tokens: left out"));
    assert!(without(true).notes().join(";").contains("read as `z`"));
}

#[test]
fn bos_comes_from_the_config_else_from_the_post_processor() {
    let encode = |folder: Folder| folder.text().unwrap().encode("a").unwrap();
    let templated = |ids: Value| changed(|json| json["post_processor"] = templating(ids));
    let config = |json: Value, folder: Folder| {
        encode(folder.with("tokenizer_config.json", json.to_string()))
    };
    assert_eq!(encode(templated(json!([258]))), [258, 97]);
    let nested = changed(|json| {
        let steps = json!([{"type": "ByteLevel"}, templating(json!([258]))]);
        json["post_processor"] = json!({"type": "Sequence", "processors": steps});
    });
    assert_eq!(encode(nested), [258, 97]);
    assert_eq!(config(json!({"add_bos_token": false}), templated(json!([258]))), [97]);
    assert_eq!(config(json!({"add_bos_token": null}), templated(json!([258]))), [258, 97]);
    for bos in [json!("<s>"), json!({"content": "<s>", "special": true})] {
        let plain = config(json!({"bos_token": bos}), changed(|_| ()));
        assert_eq!(plain, [97]);
        let asked = json!({"bos_token": bos, "add_bos_token": true});
        assert_eq!(config(asked, changed(|_| ())), [258, 97]);
    }
    says(configured(json!({"add_bos_token": true})).text(), &["`bos_token`: expected a token"]);
    let last = changed(|json| {
        json["post_processor"] = templating(json!([258]));
        json["post_processor"]["single"].as_array_mut().unwrap().reverse();
    });
    assert!(last.text().unwrap().notes().join(";").contains("puts `<s>` after texts: left out"));
    assert_eq!(encode(last), [97]);
}

#[test]
fn replies_end_where_generation_and_tokenizer_config_say_and_else_where_the_model_does() {
    let ends = |files: &[(&str, Value)]| {
        let folder = files
            .iter()
            .fold(changed(|_| ()), |folder, (file, json)| folder.with(file, json.to_string()));
        folder.text().unwrap().stop_tokens().to_vec()
    };
    let generation = |ids: Value| ("generation_config.json", json!({"eos_token_id": ids}));
    let eos = |text: Value| ("tokenizer_config.json", json!({"eos_token": text}));
    let model = ("config.json", json!({"text_config": {"eos_token_id": [5, 6]}}));
    assert_eq!(ends(&[generation(json!(7)), model.clone()]), [7]);
    assert_eq!(ends(&[generation(json!([9, 7, 9]))]), [7, 9]);
    assert_eq!(ends(&[generation(json!([9])), eos(json!("</s>")), model.clone()]), [9, 259]);
    assert_eq!(ends(&[eos(json!({"content": "</s>"})), model.clone()]), [259]);
    assert_eq!(ends(&[generation(json!(null)), model]), [5, 6]);
    assert_eq!(ends(&[("config.json", json!({"eos_token_id": 4}))]), [4]);
    let known = changed(|json| json["added_tokens"][0]["content"] = json!("<|im_end|>"));
    let known = known.with("generation_config.json", r#"{"eos_token_id": 7}"#);
    assert_eq!(known.text().unwrap().stop_tokens(), [7, 258]);
}

#[test]
fn templates_come_from_the_jinja_file_then_the_config_then_the_old_file() {
    let render = |folder: &Folder| {
        let text = folder.text().unwrap();
        (text.render(&[], false, &Map::new()).unwrap(), text.notes().join(";"))
    };
    let old = json!({"chat_template": "old {{ eos_token }}"}).to_string();
    let folder = changed(|_| ()).with("chat_template.json", old);
    assert_eq!(render(&folder).0, "old ");
    let config = json!({"chat_template": "config {{ bos_token }}", "bos_token": "<s>"});
    let folder = folder.with("tokenizer_config.json", config.to_string());
    assert_eq!(render(&folder).0, "config <s>");
    let folder = folder.with("chat_template.jinja", "jinja {{ bos_token }}{{ eos_token }}");
    assert_eq!(render(&folder).0, "jinja <s>");
    let named = |name: &str| json!({"name": name, "template": format!("named {name}")});
    let folder = configured(json!({"chat_template": [named("tool_use"), named("default")]}));
    let (text, notes) = render(&folder);
    assert_eq!(text, "named default");
    assert!(notes.contains("`tool_use`, `default`"), "{notes}");
    let folder = configured(json!({"chat_template": [named("rag")]}));
    says(folder.text(), &["`tokenizer_config.json`: `chat_template`", "`default`", "`rag`"]);
    let folder = configured(json!({"chat_template": [{"name": "default"}]}));
    says(folder.text(), &["`chat_template[0]`", "`name` and `template`"]);
}

#[test]
fn the_config_adds_tokens_and_says_which_are_special() {
    let decoder = json!({"added_tokens_decoder": {
        "260": {"content": "[x]", "special": true},
        "263": {"content": "<far>", "special": true}}});
    let text = configured(decoder).text().unwrap();
    assert!(text.is_control(260) && text.is_control(263) && !text.is_control(261));
    assert_eq!(text.encode("a<far>").unwrap(), [97, 263]);
    assert_eq!((text.vocab(), text.token_bytes(261)), (264, &b""[..]));
    for config in [
        json!({"additional_special_tokens": ["[x]"]}),
        json!({"extra_special_tokens": {"image_token": "[x]"}}),
        json!({"pad_token": {"content": "[x]"}}),
    ] {
        assert!(configured(config).text().unwrap().is_control(260));
    }
    // An ordinary token in such a place stays one.
    assert!(!configured(json!({"pad_token": "a"})).text().unwrap().is_control(97));
    let refused = |tokens: Value, parts: &[&str]| {
        says(configured(json!({"added_tokens_decoder": tokens})).text(), parts);
    };
    refused(json!({"97": {"content": "[y]"}}), &["`added_tokens_decoder`", "`a` alone", "`[y]`"]);
    refused(json!({"x": {"content": "[y]"}}), &["ids as keys, found x"]);
    refused(json!({"300": {}}), &["`added_tokens_decoder.300`", "content"]);
    refused(json!({"9999999": {"content": "[y]"}}), &["below 1048576", "9999999 of `[y]`"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_folder_and_a_gguf_of_the_same_tokenizer_are_one(
        inputs in prop::collection::vec(any::<String>(), 16),
    ) {
        use std::sync::LazyLock;
        static BOTH: LazyLock<(Text, Text)> =
            LazyLock::new(|| (baton_tiny(), baton_tiny_as_gguf()));
        for input in inputs {
            prop_assert_eq!(BOTH.0.encode(&input).unwrap(), BOTH.1.encode(&input).unwrap());
            let plain = BOTH.0.encode_plain(&input).unwrap();
            prop_assert_eq!(&plain, &BOTH.1.encode_plain(&input).unwrap());
        }
    }
}
