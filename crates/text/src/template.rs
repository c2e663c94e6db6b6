//! The chat template, by a bounded Jinja.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, State};
use serde_json::{Map, Value};

use crate::json::Style;
use crate::plain::{self, guard_namespaces, plain};
use crate::tokens::Parts;
use crate::{TextError, clock};

/// The template of checkpoints that bring none.
pub(crate) const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] \
    + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Bytes of a template; the longest that models bring have a third of it.
const SOURCE_BYTES_MAX: usize = 64 << 10;
/// Steps that a template may take for one conversation. A step is an instruction, or 64 bytes of
/// text that is made or walked.
const STEPS_MAX: u64 = 2_000_000;
/// Bytes that a template may write.
const PROMPT_BYTES_MAX: usize = 32 << 20;
/// Spaces a level that `tojson` indents by at most.
const INDENT_MAX: usize = 64;
/// Bytes of a template's own words in an error.
const REASON_BYTES_MAX: usize = 1_024;
/// Address space for a template's thread: a source of [`SOURCE_BYTES_MAX`] can nest as deep as it
/// is long, and the engine takes stack for each level. Only what is touched takes memory.
const STACK_BYTES: usize = 512 << 20;
const NAME: &str = "chat_template";

/// A compiled template with the names it may use.
pub(crate) struct Template {
    source: String,
    environment: Environment<'static>,
    /// `bos_token`, `eos_token` and the variables that count as absent unless a request brings
    /// them.
    defaults: Map<String, Value>,
}

impl Template {
    pub(crate) fn new(parts: &Parts, notes: &mut Vec<String>) -> Result<Self, TextError> {
        let source = parts.template.clone().unwrap_or_else(|| {
            notes.push("the checkpoint has no chat template: using ChatML".to_owned());
            CHATML.to_owned()
        });
        let mut defaults = Map::new();
        for name in ["tools", "documents"] {
            defaults.insert(name.to_owned(), Value::Null);
        }
        for (name, text) in [("bos_token", &parts.bos), ("eos_token", &parts.eos)] {
            defaults.insert(name.to_owned(), text.as_str().into());
        }
        Ok(Self { environment: compiled(&source)?, source, defaults })
    }

    /// Another template with the same names; this one stays where the other does not compile.
    pub(crate) fn replace(&mut self, source: &str) -> Result<(), TextError> {
        self.environment = compiled(source)?;
        source.clone_into(&mut self.source);
        Ok(())
    }

    /// Whether the source holds a word.
    pub(crate) fn mentions(&self, word: &str) -> bool {
        self.source.contains(word)
    }

    /// Renders over `messages`, whose contents are texts.
    pub(crate) fn render(
        &self,
        messages: Value,
        add_generation_prompt: bool,
        extra: &Map<String, Value>,
    ) -> Result<String, TextError> {
        let mut context = self.defaults.clone();
        context.extend(extra.clone());
        context.insert("messages".to_owned(), messages);
        context.insert("add_generation_prompt".to_owned(), add_generation_prompt.into());
        let mut out = Capped::default();
        let render = || {
            let context = minijinja::value::Serde(&context);
            let template = self.environment.get_template(NAME)?;
            template.render_captured_to(context, &mut out).map(drop)
        };
        let rendered = on_deep_stack(render)?;
        if out.full {
            return Err(TextError::PromptBytes { limit: PROMPT_BYTES_MAX });
        }
        rendered.map_err(|error| failure(&error))?;
        String::from_utf8(out.bytes)
            .map_err(|error| TextError::TemplateFails { reason: error.to_string() })
    }
}

/// Runs `work` where a deep recursion has room.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TextError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("template".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work);
        let thread = thread.map_err(|error| TextError::TemplateFails {
            reason: format!("no thread to run it: {error}"),
        })?;
        let done = thread.join();
        Ok(done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn compiled(source: &str) -> Result<Environment<'static>, TextError> {
    if source.len() > SOURCE_BYTES_MAX {
        let (found, limit) = (source.len(), SOURCE_BYTES_MAX);
        return Err(TextError::TemplateBytes { found, limit });
    }
    on_deep_stack(|| environment(&without_generation_tags(source)))?
        .map_err(|error| TextError::TemplateSyntax { reason: describe(&error) })
}

fn environment(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    // What Hugging Face's templates are written for.
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    let source = guard_namespaces(source, &syntax);
    environment.set_syntax(syntax);
    environment.set_unknown_method_callback(method);
    environment.set_fuel(Some(STEPS_MAX));
    environment.add_filter("tojson", tojson);
    environment.add_filter(plain::FILTER, plain);
    environment.add_function("raise_exception", |reason: &str| -> Result<String, Error> {
        let refused = Refused(cut(reason).to_owned());
        Err(Error::new(ErrorKind::InvalidOperation, refused.to_string()).with_source(refused))
    });
    environment.add_function("strftime_now", |format: &str| clock::strftime(format, clock::now()));
    environment.add_template_owned(NAME, source)?;
    Ok(environment)
}

/// Replaces Hugging Face's training marks, `{% generation %}` and `{% endgeneration %}`, by blocks
/// that change nothing; their whitespace control stays.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        rest = tag;
        let word = tag.trim_start_matches(['-', '+']).trim_start();
        for (mark, block) in [("generation", "if true"), ("endgeneration", "endif")] {
            let Some(after) = word.strip_prefix(mark) else {
                continue;
            };
            if after.trim_start().trim_start_matches(['-', '+']).starts_with("%}") {
                out.push_str(&tag[..tag.len() - word.len()]);
                out.push_str(block);
                rest = after;
            }
        }
    }
    out + rest
}

/// Python's string methods. `format` pays beforehand for the widths that it is asked for.
fn method(
    state: &mut State<'_, '_>,
    value: &minijinja::Value,
    name: &str,
    args: &[minijinja::Value],
) -> Result<minijinja::Value, Error> {
    if let ("format", Some(format)) = (name, value.as_str()) {
        let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
        let widths = numbers.map(|number| number.parse().unwrap_or(u64::MAX));
        let bytes = widths.fold(0, u64::saturating_add);
        state.consume_fuel(bytes / plain::STEP_BYTES as u64)?;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

fn tojson(state: &State, value: minijinja::Value, options: Kwargs) -> Result<String, Error> {
    let refuse =
        |reason: String| Error::new(ErrorKind::InvalidOperation, format!("tojson: {reason}"));
    let indent = options.get::<Option<usize>>("indent")?;
    if indent.is_some_and(|indent| indent > INDENT_MAX) {
        return Err(refuse(format!("expected an indent of at most {INDENT_MAX}")));
    }
    let mut style = Style::new(indent);
    if let Some(separators) = options.get::<Option<Vec<String>>>("separators")? {
        let Ok([item, key]) = <[String; 2]>::try_from(separators) else {
            let reason = "tojson: expected two separators";
            return Err(Error::new(ErrorKind::InvalidOperation, reason));
        };
        (style.item, style.key) = (item, key);
    }
    style.sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    style.ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    options.assert_all_used()?;
    let value = serde_json::to_value(plain(state, value)?).map_err(|e| refuse(e.to_string()))?;
    let steps_left = state.fuel_levels().map_or(0, |(_, left)| left as usize);
    let bytes_max = steps_left.saturating_mul(plain::STEP_BYTES);
    style.write(&value, bytes_max).ok_or_else(|| Error::from(ErrorKind::OutOfFuel))
}

/// What `raise_exception` was given.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

fn failure(error: &Error) -> TextError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(here) = cause {
        if let Some(Refused(reason)) = here.downcast_ref() {
            return TextError::TemplateRefuses { reason: reason.clone() };
        }
        if here.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
            return TextError::TemplateSteps { limit: STEPS_MAX };
        }
        cause = here.source();
    }
    TextError::TemplateFails { reason: describe(error) }
}

/// The start of a text that a template chose.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(REASON_BYTES_MAX)]
}

/// An engine error in one line, with its place.
fn describe(error: &Error) -> String {
    match (error.line(), error.detail().map(cut)) {
        (Some(line), Some(detail)) => format!("line {line}: {}: {detail}", error.kind()),
        (Some(line), None) => format!("line {line}: {}", error.kind()),
        _ => cut(&error.to_string()).to_owned(),
    }
}

/// Collects what a template writes, up to the limit.
#[derive(Default)]
struct Capped {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for Capped {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + piece.len() > PROMPT_BYTES_MAX {
            self.full = true;
            return Err(io::Error::other("the prompt is full"));
        }
        self.bytes.extend(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
