//! "Use this": the lines that fetch or run what a page shows, complete for this host.

use lode_model::manifest::Manifest;
use lode_model::media_type;
use lode_model::recognise::{Artifact, Layout, Role};
use lode_model::reference::{Reference, Repository, Tag};

use crate::app::{ContentKind, MAIN, ModelFacts};

/// Lines to copy.
pub(super) struct Snippet {
    pub(super) title: &'static str,
    pub(super) text: String,
    /// What a reader has to know before.
    pub(super) note: &'static str,
    /// How a program proves who its user is, if the model is not public.
    pub(super) sign_in: Option<SignIn>,
}

/// How a program signs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SignIn {
    /// With a command.
    Command(String),
    /// With a token in `LODE_TOKEN`.
    Token,
    /// With a token as the password of a command.
    Password(String),
    /// With ollama's key, which is added to the account.
    Key,
}

/// What the lines depend on.
pub(super) struct Subject<'a> {
    /// `scheme://host` of this server for the client.
    pub(super) base: &'a str,
    pub(super) repository: &'a Repository,
    pub(super) reference: &'a Reference,
    pub(super) kind: ContentKind,
    pub(super) manifest: &'a Manifest,
    pub(super) artifact: &'a Artifact,
    pub(super) facts: &'a ModelFacts,
    /// Whether requests need credentials: without any, the model cannot be read.
    pub(super) needs_token: bool,
}

/// The tasks for which a pipeline of transformers takes a text.
const PIPELINES: [&str; 4] = ["text-generation", "text-classification", "token-classification", "fill-mask"];

impl Subject<'_> {
    pub(super) fn snippets(&self) -> Vec<Snippet> {
        let mut all = Vec::new();
        let needs_token = self.needs_token;
        let mut add = |title, text: String, note, sign_in: SignIn| {
            let sign_in = needs_token.then_some(sign_in);
            all.push(Snippet { title, text, note, sign_in })
        };
        let (name, host) = (self.name(), self.host());
        let is_plain = self.base.starts_with("http://");
        let docker = || SignIn::Password(format!("docker login {host}"));
        if self.kind == ContentKind::Model {
            let plain = if is_plain && !self.is_loopback() { " --plain-http" } else { "" };
            let can_run = self.facts.obstacle().is_none();
            let lode = || SignIn::Command(format!("lode login{plain} {host}"));
            let (verb, text) = match (self.is_embedding(), self.is_reranker()) {
                (_, true) => ("rerank", " \"What is water?\" \"A liquid.\" \"A color.\""),
                (true, false) => ("embed", " \"Hello\""),
                (false, false) => ("run", ""),
            };
            if can_run {
                add("Lode", format!("lode {verb}{plain} {name}{text}"), "", lode());
            }
            if let Some(short) = self.short_name() {
                // ollama has architectures of its own in GGUF files.
                if self.is_for_ollama() && (can_run || self.artifact.format() == Some("gguf")) {
                    let insecure = if is_plain { " --insecure" } else { "" };
                    let with_namespace = match short.contains('/') {
                        true => short.clone(),
                        false => format!("library/{short}"),
                    };
                    add("ollama", format!("ollama run{insecure} {host}/{with_namespace}"), "", SignIn::Key);
                }
                if can_run {
                    let note = "The server runs the model on one of its workers.";
                    add("curl", self.curl(&short), note, SignIn::Token);
                }
                if can_run && !self.is_reranker() {
                    add("OpenAI for Python", self.python(&short), "pip install openai", SignIn::Token);
                }
            }
            add("Files", format!("lode pull{plain} {name} --to ./{}", self.folder()), "", lode());
            if let Some(hub) = self.hf_name() {
                let lines = format!("{}\nhf download {hub}{}", self.hf_exports(), self.revision_option());
                add("hf", lines, "", SignIn::Token);
                if let Some((title, packages, lines)) = self.hf_python(hub) {
                    add(title, lines, packages, SignIn::Token);
                }
                if self.is_generating_checkpoint() {
                    let lines = format!("{}\nvllm serve {hub}{}", self.hf_exports(), self.revision_option());
                    add("vLLM", lines, "", SignIn::Token);
                }
            }
            if let Some(lines) = self.llama_cpp() {
                add("llama.cpp", lines, "", SignIn::Token);
            }
        }
        if self.artifact.layout == Layout::DockerModel {
            add("docker", format!("docker model pull {name}"), "", docker());
        }
        match self.kind {
            ContentKind::Image | ContentKind::Index | ContentKind::Pending => {
                add("docker", format!("docker pull {name}"), "", docker())
            }
            _ => {}
        }
        let has_titles = self
            .manifest
            .layers
            .iter()
            .any(|layer| layer.annotations.contains_key(media_type::TITLE_ANNOTATION));
        if has_titles || self.kind == ContentKind::Artifact {
            let plain = if is_plain { " --plain-http" } else { "" };
            let sign_in = SignIn::Password(format!("oras login{plain} {host}"));
            add("oras", format!("oras pull{plain} {name}"), "", sign_in);
        }
        all
    }

    fn host(&self) -> &str {
        self.base.split_once("://").map_or(self.base, |(_, host)| host)
    }

    fn is_loopback(&self) -> bool {
        crate::http::is_loopback(self.host())
    }

    fn name(&self) -> String {
        let mark = if matches!(self.reference, Reference::Digest(_)) { '@' } else { ':' };
        format!("{}/{}{mark}{}", self.host(), self.repository, self.reference)
    }

    /// The name under `/v1` and for ollama, where it can have one.
    fn short_name(&self) -> Option<String> {
        match self.reference {
            Reference::Tag(tag) if self.repository.as_str().matches('/').count() <= 1 => {
                Some(format!("{}:{tag}", self.repository))
            }
            _ => None,
        }
    }

    fn folder(&self) -> &str {
        let name = self.repository.as_str();
        name.rsplit_once('/').map_or(name, |(_, last)| last)
    }

    fn is_embedding(&self) -> bool {
        self.facts
            .task
            .as_deref()
            .is_some_and(|task| ["feature-extraction", "sentence-similarity"].contains(&task))
    }

    fn is_reranker(&self) -> bool {
        self.facts.task.as_deref() == Some("text-ranking")
    }

    fn is_for_ollama(&self) -> bool {
        self.artifact.layout == Layout::Ollama
    }

    fn header(&self) -> &'static str {
        match self.needs_token {
            true => " \\\n  -H \"Authorization: Bearer $LODE_TOKEN\"",
            false => "",
        }
    }

    fn curl(&self, name: &str) -> String {
        let (base, header) = (self.base, self.header());
        if self.is_reranker() {
            return format!(
                "curl {base}/v1/rerank{header} \\\n  -d '{{\"model\": \"{name}\", \"query\": \"What is water?\", \"documents\": [\"A liquid.\", \"A color.\"]}}'"
            );
        }
        match self.is_embedding() {
            true => format!(
                "curl {base}/v1/embeddings{header} \\\n  -d '{{\"model\": \"{name}\", \"input\": \"Hello\"}}'"
            ),
            false => format!(
                "curl {base}/v1/chat/completions{header} \\\n  -d '{{\"model\": \"{name}\", \"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}'"
            ),
        }
    }

    fn python(&self, name: &str) -> String {
        let key = if self.needs_token { "os.environ[\"LODE_TOKEN\"]" } else { "\"none\"" };
        let import = if self.needs_token { "import os\n" } else { "" };
        let call = match self.is_embedding() {
            true => format!(
                "reply = client.embeddings.create(model=\"{name}\", input=\"Hello\")\nprint(reply.data[0].embedding)"
            ),
            false => format!(
                "reply = client.chat.completions.create(\n    model=\"{name}\", messages=[{{\"role\": \"user\", \"content\": \"Hello\"}}])\nprint(reply.choices[0].message.content)"
            ),
        };
        format!(
            "{import}from openai import OpenAI\nclient = OpenAI(base_url=\"{}/v1\", api_key={key})\n{call}",
            self.base
        )
    }

    /// The name for Hugging Face's clients, which accept two parts, where a tag is the revision.
    fn hf_name(&self) -> Option<&str> {
        let is_tag = matches!(self.reference, Reference::Tag(_));
        Some(self.repository.as_str()).filter(|name| is_tag && name.matches('/').count() <= 1)
    }

    /// The revision, unless it is the one that clients get without naming one.
    fn revision(&self) -> Option<&Tag> {
        match self.reference {
            Reference::Tag(tag) if ![MAIN, Tag::default().as_str()].contains(&tag.as_str()) => Some(tag),
            _ => None,
        }
    }

    fn revision_option(&self) -> String {
        self.revision().map(|tag| format!(" --revision {tag}")).unwrap_or_default()
    }

    fn hf_exports(&self) -> String {
        let token = if self.needs_token { "\nexport HF_TOKEN=$LODE_TOKEN" } else { "" };
        format!("export HF_ENDPOINT={}/hf{token}", self.base)
    }

    fn is_checkpoint(&self) -> bool {
        self.artifact.find("config.json").is_some()
            && !self.artifact.files.iter().any(|file| file.role == Role::Gguf)
    }

    fn is_generating_checkpoint(&self) -> bool {
        self.is_checkpoint() && self.facts.task.as_deref() == Some("text-generation")
    }

    /// Lines for the Python library that loads the checkpoint, with the library's name and its packages.
    fn hf_python(&self, name: &str) -> Option<(&'static str, &'static str, String)> {
        let revision = self.revision().map(|tag| format!(", revision=\"{tag}\"")).unwrap_or_default();
        let (title, packages, lines) = if self.artifact.is_image_model() {
            let lines = format!(
                "from diffusers import DiffusionPipeline\npipeline = DiffusionPipeline.from_pretrained(\"{name}\"{revision})"
            );
            ("diffusers", "pip install diffusers transformers torch", lines)
        } else if !self.is_checkpoint() {
            return None;
        } else if self.is_reranker() {
            let lines = format!(
                "from sentence_transformers import CrossEncoder\nmodel = CrossEncoder(\"{name}\"{revision})\nprint(model.predict([(\"What is water?\", \"A liquid.\")]))"
            );
            ("sentence-transformers", "pip install sentence-transformers", lines)
        } else if self.is_embedding() {
            let lines = format!(
                "from sentence_transformers import SentenceTransformer\nmodel = SentenceTransformer(\"{name}\"{revision})\nprint(model.encode(\"Hello\"))"
            );
            ("sentence-transformers", "pip install sentence-transformers", lines)
        } else {
            let task = self.facts.task.as_deref().filter(|task| PIPELINES.contains(task))?;
            let lines = format!(
                "from transformers import pipeline\npipe = pipeline(\"{task}\", model=\"{name}\"{revision})\nprint(pipe(\"Hello\"))"
            );
            ("transformers", "pip install transformers torch", lines)
        };
        let token =
            if self.needs_token { "os.environ[\"HF_TOKEN\"] = os.environ[\"LODE_TOKEN\"]\n" } else { "" };
        Some((
            title,
            packages,
            format!("import os\nos.environ[\"HF_ENDPOINT\"] = \"{}/hf\"\n{token}{lines}", self.base),
        ))
    }

    /// For a model that is one GGUF file.
    fn llama_cpp(&self) -> Option<String> {
        let mut files = self.artifact.files.iter().filter(|file| file.role == Role::Gguf && file.is_layer());
        let file = files.next().filter(|_| files.next().is_none())?;
        // It downloads the main revision only, of names with two parts.
        let hub = self.hf_name().filter(|name| name.contains('/') && self.revision().is_none());
        if let Some(name) = hub {
            return Some(format!("{}\nllama-server -hf {name}", self.hf_exports()));
        }
        let (base, repository, digest) = (self.base, self.repository, &file.layer.digest);
        let header = self.header();
        Some(format!(
            "curl -L -o {0}.gguf{header} \\\n  {base}/v2/{repository}/blobs/{digest}\nllama-server -m {0}.gguf",
            self.folder()
        ))
    }
}
