//! The page at `/`: three files, part of the binary, that ask this server alone.

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// What the page may load and ask: this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// Its paths.
pub(super) const PATHS: [&str; 3] = ["/", "/page.css", "/page.js"];

/// Adds the page's routes.
pub(super) fn routes<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    let [page, style, script] = PATHS;
    router
        .route(page, get(|| file("text/html", include_str!("page/index.html"))))
        .route(style, get(|| file("text/css", include_str!("page/page.css"))))
        .route(script, get(|| file("text/javascript", include_str!("page/page.js"))))
}

async fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, format!("{kind}; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, POLICY.to_owned()),
        (header::CACHE_CONTROL, "no-cache".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    (headers, text).into_response()
}
