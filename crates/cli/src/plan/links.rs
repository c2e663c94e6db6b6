//! Links between nodes: as they were measured, unless a user says otherwise.

use anyhow::{Context, Result};
use placement::{Facts, Link, Links, Node};

/// A link that nobody has measured or told of: 0.2ms,1gbit.
const LINK: Link = Link { latency_s: 1e-4, bytes_per_s: 125e6 };

/// Links as `0.2ms,940mbit` for all pairs and `a:b=5ms,100mbit` or `a:b=none` for one, both ways;
/// those that no text names are as they were measured, else of the default.
///
/// # Errors
/// A text that is none of these, and names that no node has.
pub fn links(texts: &[String], facts: &[Facts]) -> Result<Links> {
    let nodes: Vec<Node> = facts.iter().map(|facts| facts.node.clone()).collect();
    let (pairs, all): (Vec<_>, Vec<_>) = texts.iter().partition(|text| text.contains('='));
    let mut rest = LINK;
    for text in all {
        rest = parse_link(text)?;
    }
    let mut links = Links::measured(facts, Some(rest));
    for text in pairs {
        let (names, link) = text.split_once('=').context("a pair")?;
        let (a, b) = names.split_once(':').with_context(|| format!("--link {text}: a:b=..."))?;
        let find = |name| placement::named(&nodes, name).with_context(|| format!("--link {text}"));
        let link = (link.trim() != "none").then(|| parse_link(link)).transpose()?;
        links.put(find(a)?, find(b)?, link)?;
    }
    Ok(links)
}

/// Reads a round trip and a rate: `0.2ms,940mbit`.
fn parse_link(text: &str) -> Result<Link> {
    let parsed = || {
        let (time, rate) = text.split_once(',')?;
        let ms: f64 = time.trim().strip_suffix("ms")?.parse().ok()?;
        let rate = rate.trim();
        let bits = match rate.strip_suffix("gbit") {
            Some(gbit) => gbit.parse::<f64>().ok()? * 1e9,
            None => rate.strip_suffix("mbit")?.parse::<f64>().ok()? * 1e6,
        };
        Some(Link { latency_s: ms / 2e3, bytes_per_s: bits / 8.0 })
    };
    let is_fine = |link: &Link| link.latency_s >= 0.0 && link.bytes_per_s > 0.0;
    let link = parsed().filter(is_fine);
    link.with_context(|| format!("--link {text}: expected a round trip and a rate, 0.2ms,940mbit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_for_all_and_for_a_pair() {
        let node = |name: &str| Facts {
            version: placement::FACTS_VERSION,
            model: String::new(),
            engine: String::new(),
            arith: 1,
            device: "cpu".into(),
            threads: 1,
            cores: 1,
            disk_bytes: 0,
            measured_at: 0,
            listen: Vec::new(),
            paths: Vec::new(),
            node: Node {
                name: name.into(),
                device: "made".into(),
                memory_bytes: 0,
                runtime_bytes: 0,
                endpoint_bytes: 0,
                runs: placement::Runs::default(),
                costs: placement::Costs::default(),
            },
        };
        let nodes = [node("a"), node("b-1"), node("c")];
        let read = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).into()).collect();
            super::links(&texts, &nodes)
        };
        let far = Link { latency_s: 2.5e-3, bytes_per_s: 12.5e6 };
        let of_all = read(&["a:c=5ms,100mbit", "0.5ms,2gbit"]).expect("links");
        let all = Link { latency_s: 2.5e-4, bytes_per_s: 250e6 };
        assert_eq!(of_all.get(0, 1), Some(all));
        assert_eq!(of_all.get(2, 0), Some(far));
        let of_one = read(&["a:c=5ms,100mbit", "c:b-1=none"]).expect("links");
        assert_eq!(of_one.get(0, 1), Some(LINK), "one link leaves the others as they were");
        assert_eq!(of_one.get(2, 0), Some(far));
        assert_eq!(of_one.get(1, 2), None);
        assert_eq!(parse_link("0.2ms,1gbit").expect("the default, as help says it"), LINK);
        for bad in
            ["1gbit", "1ms", "1ms,1", "xms,1gbit", "a:d=1ms,1gbit", "a=1ms,1gbit", "1ms,0mbit"]
        {
            let error = read(&[bad]).expect_err(bad).to_string();
            assert!(error.contains(bad), "{error}");
        }
    }
}
