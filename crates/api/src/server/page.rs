//! The page at `/`: three files, part of the binary, that ask this server alone.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};

/// What the page may load and ask: this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// Its paths.
pub(super) const PATHS: [&str; 3] = ["/", "/page.css", "/page.js"];

/// The page's routes.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> [(&'static str, MethodRouter<S>); 3] {
    let [page, style, script] = PATHS;
    [
        (page, get(|| file("text/html", include_str!("page/index.html")))),
        (style, get(|| file("text/css", include_str!("page/page.css")))),
        (script, get(|| file("text/javascript", include_str!("page/page.js")))),
    ]
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    const PAGE: &str = include_str!("page/index.html");
    const STYLE: &str = include_str!("page/page.css");
    const SCRIPT: &str = include_str!("page/page.js");

    /// What stands between `start` and `end`, wherever.
    fn between<'a>(text: &'a str, start: &str, end: char) -> BTreeSet<&'a str> {
        text.split(start).skip(1).filter_map(|rest| rest.split(end).next()).collect()
    }

    #[test]
    fn the_script_and_the_style_name_elements_that_there_are() {
        let ids = between(PAGE, "id=\"", '"');
        let asked = between(SCRIPT, "$(\"", '"');
        assert!(asked.len() > 15, "{asked:?}");
        let missing: Vec<_> = asked.difference(&ids).collect();
        assert!(missing.is_empty(), "{missing:?}");
        let rules = STYLE.lines().filter(|line| line.starts_with('#'));
        for rule in rules {
            let id = rule[1..].split(|c: char| !c.is_alphanumeric() && c != '_').next();
            assert!(id.is_some_and(|id| ids.contains(id)), "{rule}");
        }
        for label in between(PAGE, "for=\"", '"') {
            assert!(ids.contains(label), "{label}");
        }
    }

    #[test]
    fn nothing_comes_from_elsewhere_and_nothing_stands_inline() {
        for text in [PAGE, STYLE, SCRIPT] {
            let urls = text.matches("://").count() - text.matches("http://www.w3.org/").count();
            assert_eq!(urls, 0, "a URL");
            assert!(!text.contains("@import") && !text.contains("url("));
            assert!(!text.contains("innerHTML") && !text.contains("eval("));
        }
        for inline in [" style=", " onclick=", " onload=", "<style", "javascript:"] {
            assert!(!PAGE.contains(inline), "{inline}: the policy refuses it");
        }
        assert_eq!(PAGE.matches("<script").count(), PAGE.matches("<script src=").count());
    }

    #[test]
    fn every_field_has_a_label() {
        for kind in ["<input", "<select", "<textarea"] {
            for field in between(PAGE, kind, '>') {
                let at = PAGE.find(field).unwrap_or_default();
                let before = &PAGE[..at];
                let inside = before.rfind("<label") > before.rfind("</label>");
                let id = between(field, "id=\"", '"').into_iter().next().unwrap_or_default();
                assert!(inside || PAGE.contains(&format!("for=\"{id}\"")), "{field}");
            }
        }
    }
}
