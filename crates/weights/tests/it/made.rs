//! Model folders that tests make of another one, spoilt on purpose.

use std::path::{Path, PathBuf};

use baton_weights::{Checkpoint, WeightsError};
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};

use crate::folder::Folder;

/// A checkpoint of `golden/tiny-qwen3_5`.
pub fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/tiny-qwen3_5").join(name)
}

/// A tensor of a file.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// A model in memory.
#[derive(Clone, Debug)]
pub struct Made {
    pub config: Value,
    pub tensors: Vec<Tensor>,
}

impl Made {
    /// The tiny checkpoint `name`.
    pub fn tiny(name: &str) -> Self {
        let folder = tiny(name);
        let config = std::fs::read(folder.join("config.json")).unwrap();
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.tensors().into_iter().map(|(name, view)| Tensor {
            name,
            dtype: view.dtype().to_string(),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        });
        let mut tensors: Vec<Tensor> = tensors.collect();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        Self { config: serde_json::from_slice(&config).unwrap(), tensors }
    }

    /// The first tensor whose name ends so.
    pub fn tensor(&mut self, end: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name.ends_with(end)).unwrap()
    }

    /// Takes it out.
    pub fn without(&mut self, end: &str) -> Tensor {
        let at = self.tensors.iter().position(|tensor| tensor.name.ends_with(end)).unwrap();
        self.tensors.remove(at)
    }

    /// As a folder with one file.
    pub fn write(&self, folder: &Path) {
        write_config(folder, &self.config);
        std::fs::write(folder.join("model.safetensors"), file(&self.tensors)).unwrap();
    }

    /// As a folder of `count` shards and their index, which `change` may spoil.
    pub fn write_shards(&self, folder: &Path, count: usize, change: impl FnOnce(&mut Value)) {
        write_config(folder, &self.config);
        let mut map = Map::new();
        let each = self.tensors.len().div_ceil(count);
        for (at, tensors) in self.tensors.chunks(each).enumerate() {
            let name = format!("model-{:05}-of-{count:05}.safetensors", at + 1);
            std::fs::write(folder.join(&name), file(tensors)).unwrap();
            map.extend(tensors.iter().map(|t| (t.name.clone(), name.clone().into())));
        }
        let mut index = json!({"metadata": {"total_size": 0}, "weight_map": map});
        change(&mut index);
        let at = folder.join("model.safetensors.index.json");
        std::fs::write(at, index.to_string()).unwrap();
    }

    /// Opens it from a folder of its own.
    pub fn open(&self) -> Result<Checkpoint, WeightsError> {
        let folder = Folder::new();
        self.write(folder.path());
        Checkpoint::open(folder.path())
    }

    /// What opening it says.
    pub fn refusal(&self) -> String {
        self.open().unwrap_err().to_string()
    }
}

fn write_config(folder: &Path, config: &Value) {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

/// A file of these tensors, one after the other.
pub fn file(tensors: &[Tensor]) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for Tensor { name, dtype, shape, bytes } in tensors {
        let place = [data.len(), data.len() + bytes.len()];
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": place}));
        data.extend(bytes);
    }
    with_header(&Value::Object(header).to_string(), &data)
}

/// A file of any header.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), data].concat()
}
