//! The chat template, by a bounded Jinja.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value};

use crate::json::Style;
use crate::tokens::Parts;
use crate::{TextError, clock};

/// The template of checkpoints that bring none.
pub(crate) const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] \
    + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Steps that a template may take for one conversation.
const STEPS_MAX: u64 = 10_000_000;
/// Bytes that a template may write.
const PROMPT_BYTES_MAX: usize = 32 << 20;
const NAME: &str = "chat_template";

/// A compiled template with the names it may use.
pub(crate) struct Template {
    environment: Environment<'static>,
    /// `bos_token`, `eos_token` and the variables that count as absent unless a request brings them.
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
        for (name, id) in [("bos_token", parts.bos), ("eos_token", parts.eos)] {
            defaults.insert(name.to_owned(), parts.text(id).into());
        }
        let environment = environment(without_generation_tags(&source)).map_err(|error| {
            TextError::TemplateSyntax {
                reason: describe(&error),
            }
        })?;
        Ok(Self {
            environment,
            defaults,
        })
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
        context.insert(
            "add_generation_prompt".to_owned(),
            add_generation_prompt.into(),
        );
        let mut out = Capped::default();
        let context = minijinja::value::Serde(&context);
        let rendered = self
            .environment
            .get_template(NAME)
            .and_then(|template| template.render_captured_to(context, &mut out).map(drop));
        if out.full {
            return Err(TextError::PromptBytes {
                limit: PROMPT_BYTES_MAX,
            });
        }
        rendered.map_err(|error| failure(&error))?;
        String::from_utf8(out.bytes).map_err(|error| TextError::TemplateFails {
            reason: error.to_string(),
        })
    }
}

fn environment(source: String) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    // What Hugging Face's templates are written for.
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?,
    );
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_fuel(Some(STEPS_MAX));
    environment.add_filter("tojson", tojson);
    environment.add_function(
        "raise_exception",
        |reason: String| -> Result<String, Error> {
            let refused = Refused(reason);
            Err(Error::new(ErrorKind::InvalidOperation, refused.to_string()).with_source(refused))
        },
    );
    environment.add_function("strftime_now", |format: &str| {
        clock::strftime(format, clock::now())
    });
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
            if after
                .trim_start()
                .trim_start_matches(['-', '+'])
                .starts_with("%}")
            {
                out.push_str(&tag[..tag.len() - word.len()]);
                out.push_str(block);
                rest = after;
            }
        }
    }
    out + rest
}

fn tojson(value: minijinja::Value, options: Kwargs) -> Result<String, Error> {
    let invalid = |error: serde_json::Error| {
        Error::new(ErrorKind::InvalidOperation, format!("tojson: {error}"))
    };
    let mut style = Style::new(options.get::<Option<usize>>("indent")?);
    if let Some(separators) = options.get::<Option<Vec<String>>>("separators")? {
        let Ok([item, key]) = <[String; 2]>::try_from(separators) else {
            let reason = "tojson: expected two separators";
            return Err(Error::new(ErrorKind::InvalidOperation, reason));
        };
        (style.item, style.key) = (item, key);
    }
    style.sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    style.ascii = options
        .get::<Option<bool>>("ensure_ascii")?
        .unwrap_or(false);
    options.assert_all_used()?;
    Ok(style.write(&serde_json::to_value(&value).map_err(invalid)?))
}

/// What `raise_exception` was given.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

fn failure(error: &Error) -> TextError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(here) = cause {
        if let Some(Refused(reason)) = here.downcast_ref() {
            return TextError::TemplateRefuses {
                reason: reason.clone(),
            };
        }
        if here
            .downcast_ref::<Error>()
            .is_some_and(|e| e.kind() == ErrorKind::OutOfFuel)
        {
            return TextError::TemplateSteps { limit: STEPS_MAX };
        }
        cause = here.source();
    }
    TextError::TemplateFails {
        reason: describe(error),
    }
}

/// An engine error in one line, with its place.
fn describe(error: &Error) -> String {
    match (error.line(), error.detail()) {
        (Some(line), Some(detail)) => format!("line {line}: {}: {detail}", error.kind()),
        (Some(line), None) => format!("line {line}: {}", error.kind()),
        _ => error.to_string(),
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
