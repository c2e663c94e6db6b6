//! What a rank computes with: its layers, or a member's share of them.

use std::sync::Arc;

use anyhow::Result;
use arith::base::Rank;
use backend::Backend;
use shard::{Group, Leader, Through};
use stage::{Engine, Exchange, Member, Share, Split, Stage};
use wire::fingerprint::Fields;
use wire::layout;

use super::Model;
use crate::carrier;
use crate::contents::Contents;
use crate::device::Seat;
use crate::loading;
use crate::resident;
use crate::source::hex;

/// The share of a `member` of a rank, of `group` if it is one.
pub fn split_of(group: Option<layout::Group>, member: usize) -> Share {
    match group {
        None => Share::default(),
        Some(group) => Share {
            index: member,
            count: group.members as usize,
            split: match group.split {
                layout::Split::Shards => Split::Shards,
                layout::Split::Rows => Split::Rows,
            },
        },
    }
}

impl Model {
    /// Loads what `rank` computes with: its layers or, as the leader of `group`, its share, behind
    /// which every member is called.
    ///
    /// # Errors
    /// Too little memory, with both numbers, and what the stage refuses.
    pub fn engine(
        &self,
        rank: Rank,
        seat: &Seat,
        group: Option<&Group>,
    ) -> Result<Box<dyn Engine>> {
        let engine = self.share(rank, seat, group)?;
        Ok(match group {
            None => engine,
            Some(group) => {
                let leader = Leader::new(group.clone(), engine);
                Box::new(if self.settings.compares { leader.comparing() } else { leader })
            }
        })
    }

    /// Loads `rank`'s layers or, as a member of `group`, its share of them.
    ///
    /// # Errors
    /// As [`Model::engine`].
    pub fn share(&self, rank: Rank, seat: &Seat, group: Option<&Group>) -> Result<Box<dyn Engine>> {
        let member = group.map_or(0, |group| group.member().index);
        self.check_memory(&[(rank, member)], seat.free_bytes())?;
        let through = self.settings.through;
        let exchange = || group.map(|group| carrier::exchange(group, seat, through));
        // Members of a group have rows of their own.
        let is_ring = group.is_none() && self.layout.world() > 1;
        let moors = is_ring && carrier::moors(seat, through, rank);
        let engine: Box<dyn Engine> = match seat {
            Seat::Cpu(cpu) => Box::new(self.stage_on(rank, cpu.clone(), exchange())?),
            Seat::Cuda(cuda) => {
                let mut stage = self.stage_on(rank, cuda.clone(), exchange())?;
                if moors {
                    stage.moor();
                }
                Box::new(stage)
            }
            #[cfg(feature = "gpu")]
            Seat::Gpu(gpu) => Box::new(self.stage_on(rank, gpu.clone(), exchange())?),
        };
        resident::give_back();
        Ok(engine)
    }

    fn stage_on<B: Backend>(
        &self,
        rank: Rank,
        backend: Arc<B>,
        exchange: Option<Box<dyn Exchange>>,
    ) -> Result<Stage<B>> {
        let (range, ends) = (self.range(rank)?, rank.0 == 0);
        let Member { index, count } =
            exchange.as_ref().map_or(Member { index: 0, count: 1 }, |exchange| exchange.member());
        let all = self.checkpoint.bytes_of(range, ends) / count as u64;
        let read = self.checkpoint.bytes_read();
        let config = self.stage_config(rank)?;
        self.tell_ways(rank, index)?;
        let split = self.share_of(rank, index).split;
        let load = || match exchange {
            None => Stage::open(backend, &self.checkpoint, config),
            Some(exchange) => Stage::open_share(backend, &self.checkpoint, config, split, exchange),
        };
        let mut stage = loading::watch(rank, all, read, load)?;
        if self.settings.drafters.mtp && rank.0 == 0 && index == 0 {
            stage.add_draft_head_in(&self.checkpoint, self.settings.draft_head)?;
        }
        stage.set_keep_bytes_max(self.keep_bytes_max);
        stage.spare();
        if !self.settings.prompt_pair {
            stage.set_prompt_pair(None);
        }
        #[cfg(test)]
        if let Some((_, fault)) = self.settings.fault.filter(|(at, _)| *at == rank) {
            stage.plant(fault);
        }
        Ok(stage)
    }

    /// The share of `member` of `rank`.
    pub(super) fn share_of(&self, rank: Rank, member: usize) -> Share {
        split_of(self.layout.group(rank), member)
    }

    /// Says how each projection of `rank`'s group meets the other members.
    fn tell_ways(&self, rank: Rank, member: usize) -> Result<()> {
        let (config, share) = (self.stage_config(rank)?, self.share_of(rank, member));
        if share.count > 1 {
            for choice in stage::choices(self.checkpoint.config(), &config, share)? {
                tracing::info!("rank {rank}, member {member} of {}: {choice}", share.count);
            }
        }
        Ok(())
    }

    /// Every rank, and every member of those that are groups.
    pub fn shares(&self) -> Vec<(Rank, usize)> {
        let ranks = (0..self.layout.world()).map(Rank);
        let members = |rank| (0..self.layout.members(rank) as usize).map(move |at| (rank, at));
        ranks.flat_map(members).collect()
    }

    /// What the members of `rank`'s group must share, by name: what a ring must, and the layers
    /// themselves.
    ///
    /// # Errors
    /// A tensor that can't be read or that the file was cut without.
    pub fn group_fingerprint(&self, rank: Rank) -> Result<Fields> {
        let mut fields = self.fingerprint()?;
        fields.put("group", format!("rank {rank}"))?;
        let range = self.range(rank)?;
        let contents = Contents::read(&self.checkpoint, rank, range.clone(), rank.0 == 0)?;
        for (layer, digest) in range.zip(&contents.layers) {
            fields.put(format!("contents.layer.{layer}"), hex(digest))?;
        }
        if let Some(ends) = &contents.ends {
            fields.put("contents.embedding", hex(&ends.embedding))?;
            fields.put("contents.head", hex(&ends.head))?;
        }
        // Every member computes the same rounds in the same pieces.
        for (name, value) in [
            ("context", self.shapes.context_max),
            ("streams", self.shapes.streams_max),
            ("chunk", self.shapes.chunk_rows_max),
            ("pages", self.shapes.pages),
        ] {
            fields.put(format!("shapes.{name}"), value)?;
        }
        let prompt_pair = if self.settings.prompt_pair { "auto" } else { "off" };
        fields.put("prompt_pair", prompt_pair)?;
        if self.settings.through == Through::Nccl {
            fields.put("exchange", "nccl")?;
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::path::{Path, PathBuf};

    use arith::attention::KvDtype;
    use arith::base::Arith;
    use arith::format::Format;
    use weights::synthetic::{self, Llama};

    use super::*;
    use crate::model::{ENGINE, Settings};

    /// A file of this test's own, gone with it.
    struct Made(PathBuf);

    impl Made {
        fn new(name: &str, spec: &Llama) -> Self {
            let file = format!("baton-load-{name}-{}.gguf", std::process::id());
            let path = std::env::temp_dir().join(file);
            synthetic::llama(&path, spec).unwrap();
            Self(path)
        }
    }

    impl Drop for Made {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn settings() -> Settings {
        let layout = Some("0:3@shards2".into());
        Settings { layout, context: Some(512), ..Settings::default() }
    }

    fn agreed(path: &Path, settings: Settings) -> Fields {
        Model::open(path, settings).unwrap().group_fingerprint(Rank(0)).unwrap()
    }

    /// The names of the fields in which two members differ.
    fn between(one: &Fields, other: &Fields) -> Vec<String> {
        let (one_way, back) = (one.iter().map(|field| (field, other)), other.iter());
        let all = one_way.chain(back.map(|field| (field, one)));
        let differ = all.filter(|((name, value), fields)| fields.get(name) != Some(value));
        let mut names: Vec<String> = differ.map(|((name, _), _)| name.to_owned()).collect();
        names.sort();
        names.dedup();
        names
    }

    #[test]
    fn whatever_members_must_share_is_a_field_of_their_own_handshake() {
        let made = Made::new("settings", &Llama::default());
        let agreed_here = agreed(&made.0, settings());
        type Change = fn(&mut Settings);
        let changes: [(Change, &[&str]); 8] = [
            (|s| s.arith = Arith::Two, &["arith"]),
            (|s| s.kv = KvDtype::F32, &["kv"]),
            (|s| s.layout = Some("0:3@rows2".into()), &["layout"]),
            (|s| s.context = Some(256), &["shapes.context", "shapes.pages"]),
            (|s| s.streams = 4, &["shapes.pages", "shapes.streams"]),
            (|s| s.chunk = 256, &["shapes.chunk"]),
            (|s| s.prompt_cache_gib = Some(0.001), &["shapes.pages"]),
            (|s| s.prompt_pair = false, &["prompt_pair"]),
        ];
        for (change, expected) in changes {
            let mut other = settings();
            change(&mut other);
            assert_eq!(between(&agreed_here, &agreed(&made.0, other)), expected);
        }
        // The build and the group itself.
        let said = ["engine", "protocol", "group"].map(|name| agreed_here.get(name).unwrap());
        assert_eq!(said, [ENGINE, &wire::limit::VERSION.to_string(), "rank 0"]);
    }

    #[test]
    fn a_checkpoint_that_differs_in_a_byte_is_named_by_the_layer_that_has_it() {
        let made = Made::new("bytes", &Llama::default());
        let right = agreed(&made.0, settings());
        let bytes = std::fs::read(&made.0).unwrap();
        let checkpoint = weights::Checkpoint::open(&made.0).unwrap();
        // As a made file has them, up to its end.
        let linears = ["attn_q", "attn_k", "attn_v", "attn_output"];
        let linears = [&linears[..], &["ffn_gate", "ffn_up", "ffn_down"]].concat();
        let of_layers = |names: &[&str]| -> Vec<String> {
            let of_layer = |layer| names.iter().map(move |name| format!("blk.{layer}.{name}"));
            (0..3).flat_map(of_layer).collect()
        };
        let mut order = vec!["token_embd".to_owned()];
        order.extend(of_layers(&linears));
        order.extend(of_layers(&["attn_norm", "ffn_norm"]));
        order.push("output_norm".into());
        let size = |name: &String| {
            let tensor = checkpoint.info(&format!("{name}.weight")).unwrap();
            tensor.bytes.next_multiple_of(32)
        };
        for (name, expected) in [
            ("token_embd", "contents.embedding"),
            ("blk.0.ffn_up", "contents.layer.0"),
            ("blk.2.attn_norm", "contents.layer.2"),
            ("output_norm", "contents.head"),
        ] {
            let at = order.iter().position(|one| one == name).unwrap();
            let behind: usize = order[at..].iter().map(size).sum();
            let mut spoilt = bytes.clone();
            spoilt[bytes.len() - behind] ^= 1;
            let other = Made(made.0.with_extension(name));
            std::fs::write(&other.0, spoilt).unwrap();
            assert_eq!(between(&right, &agreed(&other.0, settings())), [expected], "{name}");
        }
        for (spec, part) in [
            (Llama { eps: 1e-6, ..Llama::default() }, "config.eps"),
            (Llama { format: Format::Q4_0, ..Llama::default() }, "tensor.blk.0.ffn_up.weight"),
        ] {
            let other = Made::new("other", &spec);
            let names = between(&right, &agreed(&other.0, settings()));
            assert!(names.iter().any(|name| name == part), "{part} in {names:?}");
        }
    }
}
