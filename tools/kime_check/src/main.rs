//! kime_check MODEL QUESTIONS SCORES TOLERANCE
//!
//! Runs the questions (lines with `type`, `ids` and `markers`, as `rankplan score` reads them) through
//! kime's CPU plan and compares its logits and act with the lines that `rankplan score` printed.
//! Exits with 1 when a difference passes the tolerance.
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use kime_cpu::executor_from;
use kime_model::laya::{AgentConfig, EncoderConfig, LayaGraph, LayaSpec};
use kime_tensor::{BatchBuf, Blob, Outputs};
use serde_json::Value;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn json(path: &Path) -> Result<Value> {
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

fn lines(path: &str) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path)?;
    Ok(text.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?)
}

/// Laya's two files, or one config.json that says what they say.
fn spec(dir: &Path) -> Result<LayaSpec> {
    let agent = dir.join("rl_agent_config.json");
    if agent.exists() {
        return Ok(LayaSpec::from_json(&json(&agent)?, &json(&dir.join("encoder/config.json"))?)?);
    }
    let config = json(&dir.join("config.json"))?;
    let encoder = EncoderConfig::from_json(&config)?;
    let head_layers = config["decision_head_layers"].as_u64().ok_or("no decision_head_layers")?;
    let max_len = config["max_position_embeddings"].as_u64().ok_or("no max_position_embeddings")?;
    let agent = AgentConfig {
        encoder: String::new(),
        head_layers: head_layers as usize,
        max_len: max_len as usize,
        head_max_len: max_len as usize,
        temperature: [1.0; 3],
        temperature_by_options: Vec::new(),
    };
    Ok(LayaSpec { id: "laya-custom".into(), encoder, agent })
}

fn numbers(v: &Value) -> Vec<u32> {
    v.as_array().into_iter().flatten().filter_map(Value::as_u64).map(|x| x as u32).collect()
}

fn floats(v: &Value) -> Vec<f64> {
    v.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

/// The largest difference; infinite when there is none to take.
fn apart(a: &[f32], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let each = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).abs());
    each.fold(0.0, |m, d| if d.is_nan() { f64::INFINITY } else { m.max(d) })
}

fn run(args: &[String]) -> Result<bool> {
    let [model, questions, scores, tolerance] = args else {
        return Err("kime_check MODEL QUESTIONS SCORES TOLERANCE".into());
    };
    let (dir, tolerance) = (Path::new(model), tolerance.parse::<f64>()?);
    let spec = spec(dir)?;
    let (tensors, _) = kime_model::safetensors::load(Blob::map(&dir.join("model.safetensors"))?)?;
    let graph = LayaGraph::bind(&spec, &tensors)?;
    let mut exec = executor_from(&spec, &graph, &tensors, 1)?;
    let (questions, scores) = (lines(questions)?, lines(scores)?);
    if questions.is_empty() || questions.len() != scores.len() {
        return Err(format!("{} questions, {} scores", questions.len(), scores.len()).into());
    }
    let (mut batch, mut out) = (BatchBuf::default(), Outputs::default());
    let (mut logits, mut act, mut options) = (0f64, 0f64, 0);
    for (q, s) in questions.iter().zip(&scores) {
        let qtype = q["type"].as_u64().ok_or("a type is no number")? as u8;
        batch.clear();
        batch.push(&numbers(&q["ids"]), &numbers(&q["markers"]), qtype);
        exec.run(&batch.batch(), &mut out)?;
        options += out.logits.len();
        logits = logits.max(apart(&out.logits, &floats(&s["logits"])));
        act = act.max(apart(&out.act[0], &floats(&s["act"])));
    }
    println!("{} questions, {options} options", questions.len());
    println!("logits: {logits:.2e} apart at most");
    println!("act:    {act:.2e} apart at most");
    let (weights, plans) = exec.memory();
    println!("kime: {weights} bytes of weights, {plans} of plans");
    Ok(logits <= tolerance && act <= tolerance)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("kime_check: {e}");
            ExitCode::from(2)
        }
    }
}
