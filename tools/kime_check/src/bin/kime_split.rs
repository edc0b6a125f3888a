//! kime_split make FOLDER [tiny]
//! kime_split answer FOLDER
//! kime_split check FOLDER SCORES TOLERANCE
//!
//! The split encoder of the published crates beside rankplan's. `make` writes a checkpoint of
//! kime's own random weights, `kime.json`, and `questions.jsonl`: states in one piece and in
//! segments, of which later ones share some, with questions of every type. `answer` prints the
//! logits of `kime_cpu::split` for those questions, a list a line. `check` compares them with the
//! lines that `rankplan score FOLDER FOLDER/questions.jsonl` printed, and exits with 1 when a
//! difference passes the tolerance. tests/data/kime is `make` with `tiny`, and `answer`.
use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use kime_cpu::split::{Memory, Row, SegmentCache, Split};
use kime_model::kime_v1::{V1Graph, V1Spec, random_weights};
use kime_tensor::Blob;
use serde_json::{Map, Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

// ---- making ---------------------------------------------------------------------------------------

fn config(tiny: bool) -> Value {
    if tiny {
        return json!({
            "format": "kime/1", "family": "kime-v1", "id": "kime-v1-tiny", "version": "0.0.0",
            "tokenizer": {"kind": "bpe-bytelevel", "cls": 1, "sep": 2, "pad": 0,
                "specials": {"opt": 3, "no": 4, "yes": 5, "cls_s": 6, "cls_q": 7}},
            "dims": {"d": 64, "heads": 1, "head_dim": 64, "inter": 32, "vocab": 500},
            "state_tower": {"layers": 2, "global_every": 2, "window": 8,
                "rope_theta_global": 160000.0, "rope_theta_local": 10000.0,
                "segment_top_layers": 1, "max_tokens": 2048, "max_segments": 4},
            "question_tower": {"layers": 2, "kv_heads": 1, "max_options_per_chunk": 32,
                "max_tokens": 256},
            "gelu": "erf", "norm_eps": 1e-5
        });
    }
    json!({
        "format": "kime/1", "family": "kime-v1", "id": "kime-v1-random", "version": "0.0.0",
        "tokenizer": {"kind": "bpe-bytelevel", "cls": 1, "sep": 2, "pad": 0,
            "specials": {"opt": 3, "no": 4, "yes": 5, "cls_s": 6, "cls_q": 7}},
        "dims": {"d": 384, "heads": 6, "head_dim": 64, "inter": 576, "vocab": 500},
        "state_tower": {"layers": 7, "global_every": 3, "window": 32,
            "rope_theta_global": 160000.0, "rope_theta_local": 10000.0, "segment_top_layers": 3,
            "max_tokens": 1024, "max_segments": 6},
        "question_tower": {"layers": 3, "kv_heads": 2, "max_options_per_chunk": 32,
            "max_tokens": 512},
        "gelu": "erf", "norm_eps": 1e-5
    })
}

/// A fixed sequence of numbers, by Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        for (left, by) in [(true, 13), (false, 7), (true, 17)] {
            self.0 ^= if left { self.0 << by } else { self.0 >> by };
        }
        (self.0 >> 11) % n
    }

    fn words(&mut self, n: u64) -> Vec<u64> {
        (0..n).map(|_| 8 + self.below(492)).collect()
    }

    fn question(&mut self) -> Value {
        let kind = self.below(3);
        let wrap = |first: u64, mut words: Vec<u64>| {
            words.insert(0, first);
            words.push(2);
            words
        };
        let n = self.below(30);
        let header = wrap(7, self.words(n));
        let count = if kind == 2 { 2 } else { 1 + self.below(9) };
        let options: Vec<_> = (0..count)
            .map(|i| {
                let n = self.below(12);
                wrap(if kind == 2 { 4 + i } else { 3 }, self.words(n))
            })
            .collect();
        json!({"type": kind, "header": header, "options": options})
    }
}

fn questions(states: usize, each: usize) -> String {
    let mut random = Random(0x6b69_6d65);
    let mut kept: Vec<Vec<u64>> = Vec::new();
    let mut out = String::new();
    for i in 0..states {
        let state = if i % 2 == 0 {
            let n = 1 + random.below(if i == 12 { 900 } else { 120 });
            ("state", json!(random.words(n)))
        } else {
            let mut segments = vec![vec![6]];
            for _ in 0..2 + random.below(8) {
                if kept.is_empty() || random.below(2) == 0 {
                    let n = 1 + random.below(40);
                    kept.push(random.words(n));
                }
                segments.push(kept[random.below(kept.len() as u64) as usize].clone());
            }
            segments.push(vec![2]);
            ("segments", json!(segments))
        };
        for _ in 0..each {
            let mut line = random.question();
            line[state.0] = state.1.clone();
            out.push_str(&line.to_string());
            out.push('\n');
        }
    }
    out
}

fn make(dir: &Path, tiny: bool) -> Result<()> {
    let config = config(tiny);
    let spec = V1Spec::from_json(&config)?;
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, shape, values) in random_weights(&spec, 2026) {
        let begin = data.len();
        data.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert(name, entry);
    }
    let header = Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    fs::create_dir_all(dir)?;
    fs::write(dir.join("model.safetensors"), bytes)?;
    fs::write(dir.join("kime.json"), serde_json::to_string_pretty(&config)? + "\n")?;
    let (states, each) = if tiny { (6, 3) } else { (14, 5) };
    fs::write(dir.join("questions.jsonl"), questions(states, each))?;
    Ok(())
}

// ---- checking -------------------------------------------------------------------------------------

fn lines(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path)?;
    Ok(text.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?)
}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().into_iter().flatten().filter_map(Value::as_u64).map(|x| x as u32).collect()
}

fn lists(v: &Value) -> Vec<Vec<u32>> {
    v.as_array().into_iter().flatten().map(ids).collect()
}

/// The largest difference; infinite when there is none to take.
fn apart(a: &[f32], b: &Value) -> f64 {
    let b: Vec<f64> = b.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let each = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).abs());
    each.fold(0.0, |m, d| if d.is_nan() { f64::INFINITY } else { m.max(d) })
}

fn answers(dir: &Path) -> Result<Vec<Vec<f32>>> {
    let spec: Value = serde_json::from_str(&fs::read_to_string(dir.join("kime.json"))?)?;
    let spec = V1Spec::from_json(&spec)?;
    let (tensors, _) = kime_model::safetensors::load(Blob::map(&dir.join("model.safetensors"))?)?;
    let graph = V1Graph::bind(&spec, &tensors)?;
    let split = Split::new(&spec, &graph, &tensors, 1);
    let mut cache = SegmentCache::default();
    let mut memories: HashMap<String, Memory> = HashMap::new();
    let mut out = Vec::new();
    for q in lines(&dir.join("questions.jsonl"))? {
        let key = format!("{}{}", q["state"], q["segments"]);
        let memory = memories.entry(key).or_insert_with(|| match q.get("segments") {
            Some(v) => {
                let list = lists(v);
                let list: Vec<&[u32]> = list.iter().map(Vec::as_slice).collect();
                split.state_segments(&list, &mut cache)
            }
            None => split.state(&ids(&q["state"])),
        });
        let choices = lists(&q["options"]);
        let qtype = q["type"].as_u64().ok_or("a type is no number")? as usize;
        let row = Row { qtype, header: &ids(&q["header"]), options: &choices };
        out.push(split.question(memory, row));
    }
    Ok(out)
}

fn check(dir: &Path, scores: &Path, tolerance: f64) -> Result<bool> {
    let (answers, scores) = (answers(dir)?, lines(scores)?);
    if answers.is_empty() || answers.len() != scores.len() {
        return Err(format!("{} questions, {} scores", answers.len(), scores.len()).into());
    }
    let each = answers.iter().zip(&scores).map(|(a, s)| apart(a, &s["logits"]));
    let worst = each.fold(0.0, f64::max);
    let options: usize = answers.iter().map(Vec::len).sum();
    println!("{} questions, {options} options", answers.len());
    println!("logits: {worst:.2e} apart at most");
    Ok(worst <= tolerance)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["make", dir] => make(Path::new(dir), false).map(|()| true),
        ["make", dir, "tiny"] => make(Path::new(dir), true).map(|()| true),
        ["answer", dir] => answers(Path::new(dir)).map(|all| {
            all.iter().for_each(|logits| println!("{}", json!(logits)));
            true
        }),
        ["check", dir, scores, tolerance] => tolerance
            .parse()
            .map_err(Into::into)
            .and_then(|t| check(Path::new(dir), Path::new(scores), t)),
        _ => Err("kime_split make FOLDER [tiny], answer FOLDER, or check FOLDER SCORES TOLERANCE"
            .into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("kime_split: {e}");
            ExitCode::from(2)
        }
    }
}
