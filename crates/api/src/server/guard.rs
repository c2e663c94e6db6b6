//! What every request passes: keys, origins, counting.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::routes::OPENAPI;
use super::{Shared, page};
use crate::ApiError;

/// Whose request it is; in its extensions.
#[derive(Clone, Debug)]
pub(super) struct Owner(pub Arc<str>);

/// Paths that need no key beside the page's; what they tell without one is no secret.
const OPEN: [&str; 3] = ["/health", "/ready", OPENAPI];

/// Checks the key, answers other origins as they are allowed, and counts.
pub(super) async fn guard(
    State(shared): State<Arc<Shared>>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let origin = allowed(&shared, request.headers());
    if origin.is_some() && request.method() == Method::OPTIONS {
        return with_origin(StatusCode::NO_CONTENT.into_response(), origin);
    }
    let path = request.uri().path().to_owned();
    let open = OPEN.contains(&path.as_str()) || page::PATHS.contains(&path.as_str());
    let owner = owner(&shared, request.headers());
    let response = match owner.clone() {
        None if !open => ApiError::Unauthorized.into_response(),
        known => {
            if let Some(name) = known {
                request.extensions_mut().insert(Owner(name));
            }
            next.run(request).await
        }
    };
    if path.starts_with("/v1/") {
        let owner = owner.as_deref().unwrap_or("unknown");
        shared.metrics.answered(owner, response.status().as_u16(), started.elapsed());
    }
    with_origin(response, origin)
}

/// The name of the request's key; `none` where the server has no keys.
fn owner(shared: &Shared, headers: &HeaderMap) -> Option<Arc<str>> {
    let Some(keys) = &shared.app.keys else {
        return Some("none".into());
    };
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    keys.name(bearer.or_else(|| text("x-api-key"))?).map(Into::into)
}

/// The origin of a request from a page, where it may ask.
fn allowed(shared: &Shared, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let known = |allowed: &String| allowed == "*" || origin.as_bytes() == allowed.as_bytes();
    shared.app.origins.iter().any(known).then(|| origin.clone())
}

fn with_origin(mut response: Response, origin: Option<HeaderValue>) -> Response {
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
        let methods = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        let allowed = "authorization, content-type, x-api-key, anthropic-version";
        let allowed = HeaderValue::from_static(allowed);
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    }
    response
}
