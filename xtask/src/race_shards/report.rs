//! What a race of shards showed.

use std::fmt;

use crate::race_ring::report::median;
use crate::race_ring::seat::Ran;

/// Runs of one layout over one link.
#[derive(Debug)]
pub struct Row {
    link: &'static str,
    name: String,
    /// Prompt tokens a second.
    prompt: Vec<f64>,
    /// Decoded tokens a second.
    decode: Vec<f64>,
}

impl Row {
    /// Without runs.
    pub fn new(link: &'static str, name: &str) -> Self {
        Self { link, name: name.into(), prompt: Vec::new(), decode: Vec::new() }
    }

    /// A run; the first warms caches.
    pub fn add(&mut self, round: u32, ran: &Ran) {
        if round > 0 {
            self.prompt.push(ran.prompt);
            self.decode.push(ran.decode);
        }
    }

    fn medians(&self) -> [f64; 2] {
        [median(&self.prompt), median(&self.decode)]
    }
}

/// Layouts over links.
#[derive(Debug, Default)]
pub struct Table {
    /// Of each link one rank first, then the others.
    pub rows: Vec<Row>,
}

impl Table {
    /// The ratios to one rank beside it, link by link.
    fn ratios(&self) -> impl Iterator<Item = (&Row, [f64; 2])> {
        let mut one = [f64::NAN; 2];
        self.rows.iter().map(move |row| {
            let found = row.medians();
            if row.name == "one rank" {
                one = found;
            }
            (row, [found[0] / one[0], found[1] / one[1]])
        })
    }

    /// Prompt and decode of the slowest link, in one rank's.
    pub fn summary(&self) -> String {
        let last = self.rows.last().map_or("", |row| row.link);
        let said = self.ratios().filter(|(row, _)| row.link == last && row.name != "one rank");
        let said = said.map(|(row, [prompt, decode])| {
            format!("{} {prompt:.2} prompt {decode:.2} decode", row.name)
        });
        format!(" of one rank at {last}: {};", said.collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| link | layout | prompt tokens/s | of one rank | decode tokens/s | |")?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        for (row, [of_prompt, of_decode]) in self.ratios() {
            let ([prompt, decode], Row { link, name, .. }) = (row.medians(), row);
            write!(f, "| {link} | {name} | {prompt:.1} | {of_prompt:.2} ")?;
            writeln!(f, "| {decode:.1} | {of_decode:.2} |")?;
        }
        Ok(())
    }
}

/// Prompts of a group alone and in pairs.
#[derive(Debug)]
pub struct Pairs {
    split: String,
    /// Tokens of a prompt.
    prompt: u32,
    /// Alone, with exchanges through memory: what nothing but the compute takes, nearly.
    free: Row,
    /// Alone and in pairs, a link each.
    rows: Vec<[Row; 2]>,
}

impl Pairs {
    /// Without links.
    pub fn new(split: &str, prompt: u32, free: Row) -> Self {
        Self { split: split.into(), prompt, free, rows: Vec::new() }
    }

    /// Adds a link.
    pub fn add(&mut self, rows: [Row; 2]) {
        self.rows.push(rows);
    }

    /// Milliseconds of a prompt.
    fn time(&self, row: &Row) -> f64 {
        1e3 * f64::from(self.prompt) / row.medians()[0]
    }

    /// How long the link makes a prompt alone, and which part of that pairs take away.
    fn hidden(&self, rows: &[Row; 2]) -> (f64, f64) {
        let [alone, paired] = rows.each_ref().map(|row| self.time(row));
        let shows = alone - self.time(&self.free);
        (shows, (alone - paired) / shows)
    }

    /// What pairs gain on each link.
    pub fn summary(&self) -> String {
        let links = self.rows.iter().map(|rows| {
            let [alone, paired] = rows.each_ref().map(|row| self.time(row));
            let hidden = 100.0 * self.hidden(rows).1;
            format!("{} {:.3} ({hidden:.0} % hidden)", rows[0].link, alone / paired)
        });
        format!(" pairs of {}: {};", self.split, links.collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Display for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { split, prompt, free, rows } = self;
        let through_memory = self.time(free);
        writeln!(f, "{split}, a prompt of {prompt}; alone through memory {through_memory:.0} ms:")?;
        write!(f, "| link | alone, ms | in pairs, ms | gain | the link shows, ms | hidden ")?;
        writeln!(f, "| decode tokens/s, alone and in pairs |\n|---|---|---|---|---|---|---|")?;
        for rows in rows {
            let ([alone, paired], link) = (rows.each_ref().map(|row| self.time(row)), rows[0].link);
            let (shows, hidden) = self.hidden(rows);
            let [first, second] = rows.each_ref().map(|row| row.medians()[1]);
            write!(f, "| {link} | {alone:.0} | {paired:.0} | {:.3} ", alone / paired)?;
            write!(f, "| {shows:.0} | {:.0} % ", 100.0 * hidden)?;
            writeln!(f, "| {first:.1}, {second:.1} |")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn row(link: &'static str, name: &str, prompt: f64, decode: f64) -> Row {
        Row { link, name: name.into(), prompt: vec![prompt; 3], decode: vec![decode; 3] }
    }

    #[test]
    fn what_a_link_shows_and_what_pairs_hide_are_of_the_times() {
        let free = row("free", "through memory", 512.0, 30.0);
        let mut pairs = Pairs::new("shards2", 512, free);
        let both = |link, alone: f64, paired: f64| {
            [("alone", alone), ("in pairs", paired)]
                .map(|(name, ms)| row(link, name, 512.0 / ms * 1e3, 30.0))
        };
        pairs.add(both("free", 1_100.0, 1_100.0));
        pairs.add(both("slow", 1_400.0, 1_100.0));
        let expected = " pairs of shards2: free 1.000 (0 % hidden), slow 1.273 (75 % hidden);";
        assert_eq!(pairs.summary(), expected);
        let line = "| slow | 1400 | 1100 | 1.273 | 400 | 75 % | 30.0, 30.0 |";
        assert!(pairs.to_string().contains(line), "{pairs}");
    }

    #[test]
    fn ratios_are_to_the_one_rank_of_the_same_link() {
        let mut table = Table::default();
        table.rows.extend([row("free", "one rank", 100.0, 10.0), row("free", "ring", 90.0, 9.0)]);
        table.rows.extend([row("slow", "one rank", 50.0, 5.0), row("slow", "ring", 40.0, 2.0)]);
        assert_eq!(table.summary(), " of one rank at slow: ring 0.80 prompt 0.40 decode;");
        assert!(table.to_string().contains("| free | ring | 90.0 | 0.90 | 9.0 | 0.90 |"));
    }
}
