//! `baton chat`: a conversation in the terminal.

mod editor;

use std::io::{BufRead, IsTerminal, Write};

use anyhow::Result;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::args::Chat;
use crate::client::{Client, Piece, Streamed, Wish};
use crate::signal::Signals;
use editor::{Editor, Typed};

/// Pieces that may wait to be shown.
const PIECES_MAX: usize = 64;

const HELP: &str = "\
/again           another reply to the last message
/new             a new conversation
/system TEXT     a system message from here on; none without TEXT
/help            this
/quit            or Ctrl-D, to leave
A line that ends in \\ goes on in the next; a paste stays one message. Up and down: what was typed
before. Ctrl-C stops a reply; what came of it stays in the conversation.";

/// Asks once, or talks until the input ends.
///
/// # Errors
/// A server that is not there or not ready, and a reply that failed.
pub fn run(args: &Chat) -> Result<()> {
    let client = Client::new(&args.url);
    client.ready()?;
    let mut talk = Talk::new(args, client);
    if let Some(message) = &args.message {
        talk.say(message);
        return talk.reply();
    }
    if std::io::stdin().is_terminal() {
        return talk.at_a_terminal(&args.url);
    }
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line.trim().is_empty() {
            break;
        }
        talk.say(&line);
        talk.reply()?;
    }
    Ok(())
}

/// A conversation so far.
struct Talk {
    client: Client,
    wish: Wish,
    system: Option<String>,
    /// Without the system message.
    turns: Vec<Value>,
}

impl Talk {
    fn new(args: &Chat, client: Client) -> Self {
        let wish =
            Wish { max_tokens: args.max_tokens, temperature: args.temperature, seed: args.seed };
        Self { client, wish, system: args.system.clone(), turns: Vec::new() }
    }

    fn say(&mut self, text: &str) {
        self.turns.push(json!({"role": "user", "content": text}));
    }

    /// All that the server is sent.
    fn messages(&self) -> Vec<Value> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        system.chain(self.turns.iter().cloned()).collect()
    }

    /// Shows the reply to what was said last, and takes it into the conversation.
    fn reply(&mut self) -> Result<()> {
        let reply = self.client.chat(&self.messages(), &self.wish, |piece| {
            show(piece);
            true
        });
        println!();
        self.turns.push(json!({"role": "assistant", "content": reply?.text}));
        Ok(())
    }

    fn at_a_terminal(&mut self, url: &str) -> Result<()> {
        println!("Talk to {url}; /help says what else there is, Ctrl-D ends.");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut editor = Editor::new()?;
        loop {
            let text = match editor.read()? {
                Typed::Text(text) => text,
                Typed::Nothing => continue,
                Typed::End => return Ok(()),
            };
            let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((&text, ""));
            match word {
                "/quit" | "/exit" => return Ok(()),
                "/help" => println!("{HELP}"),
                "/new" => self.turns.clear(),
                "/system" => {
                    self.system = Some(rest.trim().into()).filter(|t: &String| !t.is_empty())
                }
                "/again" => {
                    let is_users = |turn: &Value| turn["role"] == "user";
                    self.turns
                        .truncate(self.turns.iter().rposition(is_users).map_or(0, |at| at + 1));
                    match self.turns.is_empty() {
                        true => println!("There is nothing to answer yet."),
                        false => self.answer(&runtime, true)?,
                    }
                }
                command if command.starts_with('/') && !command[1..].contains('/') => {
                    println!("There is no {command}; /help lists what there is.");
                }
                _ => {
                    self.say(&text);
                    self.answer(&runtime, false)?;
                }
            }
        }
    }

    /// A reply that Ctrl-C ends. One that fails leaves the conversation as it was before.
    fn answer(&mut self, runtime: &Runtime, another: bool) -> Result<()> {
        // The reply follows from the prompt and the seed: another one needs another seed.
        let seed = if another { Some(fresh_seed()) } else { self.wish.seed };
        let wish = Wish { seed, ..self.wish };
        let (tell, told) = mpsc::channel(PIECES_MAX);
        let (client, messages) = (self.client.clone(), self.messages());
        let asking = std::thread::spawn(move || {
            client.chat(&messages, &wish, |piece| tell.blocking_send(piece.to_owned()).is_ok())
        });
        let (text, stopped) = runtime.block_on(heard(told))?;
        println!();
        let text = if stopped {
            // The thread ends with the next piece, and its connection with it: the server stops.
            println!("(stopped)");
            text
        } else {
            match asking.join().unwrap_or_else(|_| anyhow::bail!("asking panicked")) {
                Ok(Streamed { text, .. }) => text,
                Err(error) => {
                    println!("{}", crate::line(&error));
                    if !another {
                        self.turns.pop();
                    }
                    return Ok(());
                }
            }
        };
        self.turns.push(json!({"role": "assistant", "content": text}));
        Ok(())
    }
}

/// Shows pieces until there are no more or Ctrl-C; the reply's text and whether it was stopped.
async fn heard(mut told: mpsc::Receiver<Piece<String>>) -> Result<(String, bool)> {
    let mut signals = Signals::new()?;
    let mut text = String::new();
    loop {
        tokio::select! {
            piece = told.recv() => match piece {
                Some(piece) => {
                    show(piece.as_ref());
                    if let Piece::Content(content) = piece {
                        text.push_str(&content);
                    }
                }
                None => return Ok((text, false)),
            },
            _ = signals.ended() => return Ok((text, true)),
        }
    }
}

/// Of the clock: whoever asks for another reply wants an unforeseen one.
fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| since.subsec_nanos().into())
}

/// Prints a piece at once, reasoning faintly on a terminal; a closed terminal ends the program by
/// its own signal.
pub fn show(piece: Piece<&str>) {
    let mut out = std::io::stdout();
    let shown = match piece {
        Piece::Content(text) => out.write_all(text.as_bytes()),
        Piece::Reasoning(text) if out.is_terminal() => write!(out, "\x1b[2m{text}\x1b[0m"),
        Piece::Reasoning(_) => Ok(()),
    };
    let _ = shown.and_then(|()| out.flush());
}
