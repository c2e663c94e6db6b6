//! Whether and how long a model reasons.

use serde_json::{Map, Value};

use crate::ApiError;
use crate::fields::Fields;

/// Levels of `reasoning_effort`, from none up.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// What a request says about reasoning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thinking {
    /// Whether to reason; as the template likes when absent.
    pub enabled: Option<bool>,
    /// How hard.
    pub effort: Option<String>,
    /// Most tokens of reasoning.
    pub tokens_max: Option<u32>,
}

impl Thinking {
    pub(crate) fn read(body: &Fields<'_>) -> Result<Self, ApiError> {
        let mut effort = body.text("reasoning_effort")?;
        let mut effort_path = body.path("reasoning_effort");
        if let Some(reasoning) = body.object("reasoning")?
            && let Some(inner) = reasoning.text("effort")?
        {
            effort = Some(inner);
            effort_path = reasoning.path("effort");
        }
        if let Some(effort) = effort
            && !EFFORTS.contains(&effort)
        {
            let reason = format!("expected one of {}", EFFORTS.join(", "));
            return Err(ApiError::invalid(effort_path, reason));
        }
        let budget = match body.integer("thinking_budget", 0)? {
            None => body.integer("thinking_token_budget", 0)?,
            budget => budget,
        };
        let asked = match body.flag("enable_thinking")? {
            None => match body.object("chat_template_kwargs")? {
                Some(extra) => extra.flag("enable_thinking")?,
                None => None,
            },
            asked => asked,
        };
        Ok(Self {
            enabled: asked.or(effort.map(|effort| effort != "none")),
            effort: effort.map(str::to_owned),
            tokens_max: budget.map(|budget| u32::try_from(budget).unwrap_or(u32::MAX)),
        })
    }

    /// Adds what the template is told.
    pub(crate) fn tell(&self, extra: &mut Map<String, Value>) {
        if let Some(enabled) = self.enabled {
            extra.insert("enable_thinking".into(), enabled.into());
        }
        if let Some(effort) = &self.effort {
            extra.entry("reasoning_effort").or_insert_with(|| effort.as_str().into());
        }
    }
}
