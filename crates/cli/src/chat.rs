//! `baton chat`: a conversation in the terminal.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::Result;
use serde_json::{Value, json};

use crate::args::Chat;
use crate::client::Client;

/// Asks once, or line by line until the input ends.
///
/// # Errors
/// A server that is not there or not ready, and a reply that failed.
pub fn run(args: &Chat) -> Result<()> {
    let client = Client::new(&args.url);
    client.ready()?;
    let mut messages: Vec<Value> = Vec::new();
    if let Some(system) = &args.system {
        messages.push(json!({"role": "system", "content": system}));
    }
    if let Some(message) = &args.message {
        return ask(args, &client, &mut messages, message);
    }
    let terminal = std::io::stdin().is_terminal();
    if terminal {
        println!("Talk to {}; an empty line or Ctrl-D ends.", args.url);
    }
    for line in std::iter::once(None).chain(std::io::stdin().lock().lines().map(Some)) {
        if let Some(line) = line {
            let line = line?;
            if line.trim().is_empty() {
                break;
            }
            ask(args, &client, &mut messages, &line)?;
        }
        if terminal {
            print!("> ");
            std::io::stdout().flush()?;
        }
    }
    Ok(())
}

fn ask(args: &Chat, client: &Client, messages: &mut Vec<Value>, text: &str) -> Result<()> {
    messages.push(json!({"role": "user", "content": text}));
    let reply = client.chat(messages, args.max_tokens, args.temperature, show);
    println!();
    let reply = reply?;
    messages.push(json!({"role": "assistant", "content": reply.text}));
    Ok(())
}

/// Prints a piece at once; a closed terminal ends the program by its own signal.
pub fn show(piece: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(piece.as_bytes()).and_then(|()| out.flush());
}
