//! Weights as units that have an address each, kept in a folder and carried between machines.
//!
//! A model's [`weights::Catalog`] lists its units: texts, ends, layers. What a machine needs of it
//! are some of them ([`weights::Catalog::wanted`]); what it has lies in a [`Store`], each unit a
//! file, checked when it came and whenever it has been written since. The store's [`Store::view`]
//! of a model is a folder that [`weights::Checkpoint::open`] reads as the model itself, with the
//! layers that are there.
//!
//! Units come over authenticated [`Link`]s, a megabyte a message. Whoever holds units answers with
//! [`serve()`], from a [`Shelf`]: its store, and models that lie on its disk as files. Who wants
//! some runs a [`Fetch`], which any number of links feed at once: each takes the next chunk that is
//! left and that its other end holds, and at the end those of slower ones. A link that breaks gives
//! its chunks back; a unit that is not what its address says is taken again, elsewhere if it can
//! be; what came stays for the next attempt, whatever ends this one.
//!
//! - A machine that pulls: [`fetch()`] with addresses of machines that serve.
//! - A machine that is given: [`attend()`] for each connection, with a [`Receiver`]; it serves too.
//! - A machine that gives: [`push()`] to the addresses of one that attends.
//!
//! A process with a listener of its own runs the handshake itself and makes a [`Link`] of what it
//! gives ([`Link::new`]); a connector of ours says [`HELLO`] in its first message.

mod error;
mod fetch;
mod link;
pub mod message;
mod part;
mod progress;
mod pull;
mod push;
mod receive;
mod serve;
mod shelf;
mod store;

pub use error::StoreError;
pub use fetch::{Fetch, Fetched};
pub use link::{Access, HELLO, HELLO_BYTES, Link};
pub use progress::{Progress, Seen};
pub use pull::{catalog, fetch};
pub use push::{Pushed, push};
pub use receive::{Receiver, attend, attend_link};
pub use serve::serve;
pub use shelf::Shelf;
pub use store::{Hold, Store, Usage};
