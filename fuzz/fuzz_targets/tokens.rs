//! Text to tokens and back under every pre-tokenizer, any ids to text, and stop strings.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use text::Text;
use text::stop::StopStrings;
use weights::gguf::Header;
use weights::gguf::write::Writer;
use weights::synthetic::byte_char;

const PRES: [&str; 5] = ["gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35"];
/// Those of [`PRES`] that normalise the text first, which then may come back in another form.
const NORMALISING: usize = 3;

static TEXTS: LazyLock<Vec<Text>> = LazyLock::new(|| PRES.map(bytes_and_pairs).into());

fuzz_target!(init: baton_fuzz::plant(seeds()), |data: &[u8]| {
    let Some((choice, bytes)) = baton_fuzz::choice(data) else {
        return;
    };
    let at = usize::from(choice) % PRES.len();
    let text = &TEXTS[at];
    let said = String::from_utf8_lossy(bytes);
    if let Ok(ids) = text.encode_plain(&said) {
        let back = detokenized(text, &ids);
        assert!(at >= NORMALISING || back == said, "{said:?} came back as {back:?}");
    }
    if let Ok(ids) = text.encode(&said) {
        assert!(ids.iter().all(|&id| (id as usize) < text.vocab()));
    }
    let (words, _) = bytes.as_chunks::<2>();
    let id = |&word: &[u8; 2]| u32::from(u16::from_le_bytes(word)) % 300;
    let ids: Vec<u32> = words.iter().map(id).collect();
    let plain: Vec<u8> = ids
        .iter()
        .filter(|&&id| !text.is_control(id))
        .flat_map(|&id| text.token_bytes(id).to_vec())
        .collect();
    assert_eq!(detokenized(text, &ids), String::from_utf8_lossy(&plain));
    stops(&said);
});

/// All bytes, the two special tokens, and a few merges.
fn bytes_and_pairs(pre: &str) -> Text {
    let byte = |byte: u8| byte_char(byte).to_string();
    let mut tokens: Vec<String> = (0..=255).map(byte).collect();
    tokens.extend(["<|im_start|>".to_owned(), "<|im_end|>".to_owned()]);
    let mut types = vec![1; 256];
    types.extend([3, 3]);
    let mut merges = Vec::new();
    for (left, right) in
        [("a", "b"), ("ab", "ab"), ("\u{120}", "a"), ("\u{c3}", "\u{a9}"), ("1", "2")]
    {
        merges.push(format!("{left} {right}"));
        tokens.push(format!("{left}{right}"));
        types.push(1);
    }
    let mut out = Writer::new();
    out.string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", pre)
        .strings("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &types)
        .bool("tokenizer.ggml.add_bos_token", false)
        .strings("tokenizer.ggml.merges", &merges);
    let header = Header::parse(&out.finish()).expect("a legal header");
    Text::from_metadata(&header.metadata).expect("a legal tokenizer")
}

fn detokenized(text: &Text, ids: &[u32]) -> String {
    let mut detokenizer = text.detokenizer();
    let mut out: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    out.push_str(&detokenizer.finish());
    out
}

/// The first line names the stop strings; the rest, a character at a time, is shown up to the
/// first of them.
fn stops(said: &str) {
    let Some((stops, said)) = said.split_once('\n') else {
        return;
    };
    let stops: Vec<String> = stops.split(' ').take(4).map(str::to_owned).collect();
    let shown = |pieces: &mut dyn Iterator<Item = &str>| {
        let mut strings = StopStrings::new(stops.clone());
        let mut out = String::new();
        for piece in pieces {
            out.push_str(&strings.push(piece).text);
        }
        out + &strings.finish()
    };
    let whole = shown(&mut std::iter::once(said));
    let pieces = shown(&mut said.split_inclusive(|_: char| true));
    assert_eq!(whole, pieces, "the cut of the text changed what is shown of it");
    assert!(said.starts_with(&whole));
    assert!(stops.iter().all(|stop| stop.is_empty() || !whole.contains(stop.as_str())));
}

fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "aa !! 1111'S we'll?\n\n  b",
        "<|im_start|>user\nabab ab ab\u{e9}<|im_end|>",
        "b ab\nxxabab",
        "q\u{303} \u{1f642}\u{200d} \u{3000}\u{a0}\t\r\n12,3",
    ];
    let seed = |(at, text): (usize, &str)| [&[at as u8], text.as_bytes()].concat();
    let pairs = texts.iter().flat_map(|text| (0..PRES.len()).map(move |at| (at, *text)));
    pairs.map(seed).collect()
}
