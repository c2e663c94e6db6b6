//! Paths to handlers, and the small replies.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use ring::head::RingState;
use serde_json::{Value, json};

use super::{Shared, answer, tokens};
use crate::{ApiError, Endpoint};

/// Longest method and path that an error repeats.
const ECHO_CHARS_MAX: usize = 200;

type App = State<Arc<Shared>>;

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(shared)
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after_s() {
            let seconds = HeaderValue::from(seconds);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

async fn chat(State(shared): App, body: Body) -> Result<Response, ApiError> {
    answer::answer(shared, Endpoint::Chat, body).await
}

async fn completion(State(shared): App, body: Body) -> Result<Response, ApiError> {
    answer::answer(shared, Endpoint::Completion, body).await
}

fn describe_model(shared: &Shared) -> Value {
    let created = u64::try_from(shared.started_ns / 1_000_000_000).unwrap_or(0);
    json!({
        "id": shared.app.model_name, "object": "model", "created": created, "owned_by": "baton",
    })
}

async fn models(State(shared): App) -> Json<Value> {
    Json(json!({"object": "list", "data": [describe_model(&shared)]}))
}

async fn model(
    State(shared): App,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id.map_err(|e| ApiError::invalid("model", e.body_text()))?;
    if id == shared.app.model_name {
        Ok(Json(describe_model(&shared)))
    } else {
        Err(ApiError::UnknownModel(cut(&id)))
    }
}

/// The state in one word, and what there is to say about it.
fn state_of(shared: &Shared) -> (&'static str, Option<String>) {
    match shared.app.handle.state() {
        RingState::Ready => ("ready", None),
        RingState::Booting(step) => ("booting", Some(step)),
        RingState::Waiting(reason) => ("waiting", Some(reason)),
        RingState::Draining => ("draining", None),
    }
}

/// 200 as long as the process answers; the body tells the truth about the ring.
async fn health(State(shared): App) -> Json<Value> {
    let (state, detail) = state_of(&shared);
    let facts = shared.app.handle.facts();
    Json(json!({
        "status": if state == "ready" { "ok" } else { state },
        "ring": {"state": state, "detail": detail},
        "model": shared.app.model_name,
        "layout": facts.layout,
        "world": facts.world,
        "context_max": facts.context_max,
        "running": facts.running,
        "waiting": facts.waiting,
        "rounds": facts.rounds,
        "kv_pages_used": facts.pages_used,
        "kv_pages": facts.pages,
        "uptime_s": shared.started.elapsed().as_secs_f64(),
    }))
}

/// 200 only when a request would be taken.
async fn ready(State(shared): App) -> Response {
    let (state, detail) = state_of(&shared);
    let body = Json(json!({"status": state, "detail": detail}));
    if state == "ready" {
        return body.into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
}

fn cut(text: &str) -> String {
    text.chars().take(ECHO_CHARS_MAX).collect()
}

async fn unknown_path(request: Request) -> ApiError {
    ApiError::UnknownPath {
        method: cut(request.method().as_str()),
        path: cut(request.uri().path()),
    }
}

async fn wrong_method(request: Request) -> ApiError {
    ApiError::WrongMethod {
        method: cut(request.method().as_str()),
        path: cut(request.uri().path()),
    }
}
