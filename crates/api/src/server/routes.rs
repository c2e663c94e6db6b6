//! Paths to handlers, and the small replies.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Json, Router};
use grammar::Grammars;
use ring::head::RingState;
use serde_json::{Value, json};

use super::guard::{Owner, guard};
use super::{Shared, answer, page, tokens, truth, vitals};
use crate::{ApiError, Endpoint, Place, messages};

/// Longest method and path that an error repeats.
const ECHO_CHARS_MAX: usize = 200;

/// Where the description of all this is.
pub(super) const OPENAPI: &str = "/openapi.json";

type App = State<Arc<Shared>>;

/// Every path but the page's. `openapi.json` beside `lib.rs` describes all of them.
pub(super) fn all() -> Vec<(&'static str, MethodRouter<Arc<Shared>>)> {
    vec![
        ("/v1/chat/completions", post(chat)),
        ("/v1/completions", post(completion)),
        ("/v1/responses", post(respond)),
        ("/v1/responses/{id}", get(response).delete(forget)),
        ("/v1/messages", post(message)),
        ("/v1/messages/count_tokens", post(tokens::count)),
        ("/v1/models", get(models)),
        ("/v1/models/{*id}", get(model)),
        ("/tokenize", post(tokens::tokenize)),
        ("/detokenize", post(tokens::detokenize)),
        ("/metrics", get(metrics)),
        ("/v1/metrics", get(metrics)),
        ("/replan", post(replan)),
        ("/health", get(health)),
        ("/ready", get(ready)),
        (OPENAPI, get(openapi)),
    ]
}

pub(super) fn router(shared: Arc<Shared>) -> Router {
    let routes = all().into_iter().chain(page::routes());
    routes
        .fold(Router::new(), |router, (path, methods)| router.route(path, methods))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(shared.clone(), guard))
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
        if status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

async fn chat(
    State(shared): App,
    Extension(owner): Extension<Owner>,
    body: Body,
) -> Result<Response, ApiError> {
    answer::answer(shared, Endpoint::Chat, &owner, body).await
}

async fn completion(
    State(shared): App,
    Extension(owner): Extension<Owner>,
    body: Body,
) -> Result<Response, ApiError> {
    answer::answer(shared, Endpoint::Completion, &owner, body).await
}

async fn respond(
    State(shared): App,
    Extension(owner): Extension<Owner>,
    body: Body,
) -> Result<Response, ApiError> {
    answer::answer(shared, Endpoint::Response, &owner, body).await
}

async fn response(
    State(shared): App,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let kept = shared.responses.get(&owner.0, &id);
    kept.map(|kept| Json(kept.response)).ok_or_else(|| ApiError::UnknownResponse(cut(&id)))
}

async fn forget(
    State(shared): App,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    if !shared.responses.remove(&owner.0, &id) {
        return Err(ApiError::UnknownResponse(cut(&id)));
    }
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
}

async fn message(State(shared): App, Extension(owner): Extension<Owner>, body: Body) -> Response {
    match answer::answer(shared, Endpoint::Message, &owner, body).await {
        Ok(response) => response,
        Err(error) => in_anthropics_shape(&error),
    }
}

/// An error as Anthropic's clients read it.
pub(super) fn in_anthropics_shape(error: &ApiError) -> Response {
    let mut response = error.clone().into_response();
    let body = Json(messages::error_body(error)).into_response();
    let length = body.headers().get(header::CONTENT_LENGTH).cloned();
    *response.body_mut() = body.into_body();
    response.headers_mut().remove(header::CONTENT_LENGTH);
    if let Some(length) = length {
        response.headers_mut().insert(header::CONTENT_LENGTH, length);
    }
    response
}

fn describe_model(shared: &Shared) -> Value {
    let created = u64::try_from(shared.started_ns / 1_000_000_000).unwrap_or(0);
    json!({
        "id": shared.app.model_name, "object": "model", "created": created, "owned_by": "baton",
        "engine": env!("CARGO_PKG_VERSION"),
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

async fn openapi() -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, include_str!("../openapi.json")).into_response()
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

async fn metrics(State(shared): App) -> Response {
    let ready = shared.app.handle.state() == RingState::Ready;
    let facts = shared.app.handle.facts();
    let cost = shared.grammars.get().map(Grammars::cost).unwrap_or_default();
    let mut text = shared.metrics.text(&facts, cost, &shared.app.model_name, ready);
    if let Some(compared) = &shared.app.compared {
        truth::write(&mut text, compared);
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// 200 as long as the process answers; the body tells the truth about the ring, and who has no key
/// its state alone.
async fn health(State(shared): App, owner: Option<Extension<Owner>>) -> Json<Value> {
    let (state, detail) = state_of(&shared);
    let Some(Extension(Owner(key))) = owner else {
        return Json(json!({"status": if state == "ready" { "ok" } else { state }}));
    };
    let facts = shared.app.handle.facts();
    let place = Place { layout: facts.layout.clone(), arith: facts.arith(&shared.app.arith) };
    let last = shared.metrics.last(&key).map(|run| run.proof(&place));
    Json(json!({
        "status": if state == "ready" { "ok" } else { state },
        "ring": {"state": state, "detail": detail},
        "model": shared.app.model_name,
        "layout": facts.layout,
        "arith": place.arith,
        "ranks": vitals::ranks(&facts),
        "world": facts.world,
        "context_max": facts.context_max,
        "running": facts.running,
        "waiting": facts.waiting,
        "rounds": facts.rounds,
        "kv_pages_used": facts.pages_used,
        "kv_pages": facts.pages,
        "busy": facts.busy(),
        "kv_pages_kept": facts.pages_kept,
        "kept_prompts": facts.keeps,
        "last_reply": last,
        "prompt_pair": shared.app.prompt_pair.map(|pair| json!({
            "rows_min": pair.rows_min,
            "twin_bytes": pair.twin_bytes,
            "kv_pages_lost": pair.kv_pages_lost,
        })),
        "plan": truth::told(shared.app.compared.as_ref()),
        "nodes": shared.app.nodes.as_ref().map(|nodes| nodes.status()),
        "uptime_s": shared.started.elapsed().as_secs_f64(),
    }))
}

/// Asks for a new plan of who runs what; it is made whatever runs.
async fn replan(State(shared): App) -> Result<Json<Value>, ApiError> {
    let nodes = shared.app.nodes.as_ref().ok_or_else(|| ApiError::UnknownPath {
        method: "POST".into(),
        path: "/replan (this server was started without --nodes)".into(),
    })?;
    Ok(Json(json!({"accepted": nodes.replan()})))
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
