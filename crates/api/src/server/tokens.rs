//! Text to token ids and back, without a reply.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::routes::in_anthropics_shape;
use super::{Shared, answer};
use crate::fields::Fields;
use crate::request::read_ids;
use crate::{ApiError, Asked, Endpoint, messages};

/// `{"prompt": TEXT}` or `{"messages": [...]}` to `{"tokens", "count", "max_model_len"}`, with
/// `token_strs` where `return_token_strs` asks for them. `add_special_tokens: false` reads special
/// tokens of a prompt as plain text.
pub(super) async fn tokenize(
    State(shared): State<Arc<Shared>>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let body = answer::read_body(body, &shared.app.limits).await?;
    let work = move |shared: &Shared| {
        let text = &shared.app.text;
        let context_max = shared.app.handle.facts().context_max;
        let body = parse(&body, shared)?;
        let fields = Fields::of(&body, "")?;
        let strings = fields.flag("return_token_strs")?.unwrap_or(false);
        let special = fields.flag("add_special_tokens")?.unwrap_or(true);
        let ids = match (fields.get("messages"), fields.text("prompt")?) {
            (Some(_), _) => {
                Asked::of(Endpoint::Chat, &body, &shared.app.limits)?.encode(text, u32::MAX)?.0
            }
            (None, None) => return Err(ApiError::Missing { param: "prompt".into() }),
            (None, Some(prompt)) => {
                let ids = if special { text.encode(prompt) } else { text.encode_plain(prompt) };
                ids.map_err(|e| ApiError::invalid("prompt", e.to_string()))?
            }
        };
        let mut reply = json!({"tokens": ids, "count": ids.len(), "max_model_len": context_max});
        if strings {
            let word = |id: &u32| String::from_utf8_lossy(text.token_bytes(*id)).into_owned();
            reply["token_strs"] = ids.iter().map(word).collect();
        }
        Ok(Json(reply))
    };
    let bytes = shared.app.limits.inline_bytes_max + 1;
    answer::prepare(&shared, bytes, work).await
}

/// `{"tokens": [ID]}` to `{"prompt": TEXT}`; control tokens are left out, as of a reply.
pub(super) async fn detokenize(
    State(shared): State<Arc<Shared>>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let body = answer::read_body(body, &shared.app.limits).await?;
    let body = parse(&body, &shared)?;
    let fields = Fields::of(&body, "")?;
    fields.need("tokens")?;
    let ids = read_ids(fields.list("tokens")?.map_or(&[][..], Vec::as_slice), "tokens")?;
    let vocab = shared.app.text.vocab();
    if let Some(i) = ids.iter().position(|id| *id as usize >= vocab) {
        let reason = format!("token {} is outside the vocabulary of {vocab}", ids[i]);
        return Err(ApiError::invalid(format!("tokens[{i}]"), reason));
    }
    Ok(Json(json!({"prompt": answer::said(&shared.app.text, &ids)})))
}

/// Anthropic's `count_tokens`: a body of `/v1/messages` to `{"input_tokens"}`.
pub(super) async fn count(State(shared): State<Arc<Shared>>, body: Body) -> Response {
    let counted = async {
        let body = answer::read_body(body, &shared.app.limits).await?;
        let bytes = shared.app.limits.inline_bytes_max + 1;
        let work = move |shared: &Shared| {
            let limits = &shared.app.limits;
            let chat = messages::read(&parse(&body, shared)?, limits, true)?;
            let asked = Asked::of(Endpoint::Message, &chat, limits)?;
            let (ids, _) = asked.encode(&shared.app.text, u32::MAX)?;
            Ok(Json(json!({"input_tokens": ids.len()})))
        };
        answer::prepare(&shared, bytes, work).await
    };
    match counted.await {
        Ok(count) => count.into_response(),
        Err(error) => in_anthropics_shape(&error),
    }
}

fn parse(body: &[u8], shared: &Shared) -> Result<Value, ApiError> {
    crate::request::parse(body, &shared.app.limits)
}
