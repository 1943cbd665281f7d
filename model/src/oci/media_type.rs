//! The media types that Lode knows by name, and predicates over them. Other types are stored and served in
//! the same way.

pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub const OCI_EMPTY: &str = "application/vnd.oci.empty.v1+json";
pub const OCI_LAYER_TAR: &str = "application/vnd.oci.image.layer.v1.tar";
pub const OCI_LAYER_TAR_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub const DOCKER_MANIFEST_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
pub const DOCKER_FOREIGN_LAYER: &str = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip";

/// The prefix of every ollama layer type.
pub const OLLAMA_PREFIX: &str = "application/vnd.ollama.image.";
pub const OLLAMA_MODEL: &str = "application/vnd.ollama.image.model";
pub const OLLAMA_PROJECTOR: &str = "application/vnd.ollama.image.projector";
pub const OLLAMA_DRAFT: &str = "application/vnd.ollama.image.draft";
pub const OLLAMA_ADAPTER: &str = "application/vnd.ollama.image.adapter";
pub const OLLAMA_TEMPLATE: &str = "application/vnd.ollama.image.template";
pub const OLLAMA_PROMPT: &str = "application/vnd.ollama.image.prompt";
pub const OLLAMA_SYSTEM: &str = "application/vnd.ollama.image.system";
pub const OLLAMA_PARAMS: &str = "application/vnd.ollama.image.params";
pub const OLLAMA_MESSAGES: &str = "application/vnd.ollama.image.messages";
pub const OLLAMA_LICENSE: &str = "application/vnd.ollama.image.license";
/// A safetensors file that holds one tensor or one packed group of them.
pub const OLLAMA_TENSOR: &str = "application/vnd.ollama.image.tensor";
/// A JSON file of the checkpoint; the descriptor's `name` is its relative path.
pub const OLLAMA_JSON: &str = "application/vnd.ollama.image.json";
/// An older spelling of [`OLLAMA_JSON`].
pub const OLLAMA_CONFIG: &str = "application/vnd.ollama.image.config";

pub const DOCKER_MODEL_CONFIG_V01: &str = "application/vnd.docker.ai.model.config.v0.1+json";
pub const DOCKER_MODEL_CONFIG_V02: &str = "application/vnd.docker.ai.model.config.v0.2+json";
pub const DOCKER_MODEL_GGUF: &str = "application/vnd.docker.ai.gguf.v3";
pub const DOCKER_MODEL_SAFETENSORS: &str = "application/vnd.docker.ai.safetensors";
pub const DOCKER_MODEL_FILE: &str = "application/vnd.docker.ai.model.file";
/// The prefix of every layer type of Docker's model tooling.
pub const DOCKER_MODEL_PREFIX: &str = "application/vnd.docker.ai.";

pub const MODELPACK_MANIFEST: &str = "application/vnd.cncf.model.manifest.v1+json";
pub const MODELPACK_CONFIG: &str = "application/vnd.cncf.model.config.v1+json";
/// The prefix of every ModelPack layer type; the kind and the packing follow.
pub const MODELPACK_PREFIX: &str = "application/vnd.cncf.model.";
/// ModelPack's prefix before it moved to the CNCF; still in use.
pub const CNAI_PREFIX: &str = "application/vnd.cnai.model.";

pub const KITOPS_MANIFEST: &str = "application/vnd.kitops.modelkit.manifest.v1+json";
pub const KITOPS_CONFIG: &str = "application/vnd.kitops.modelkit.config.v1+json";
/// The prefix of every layer type of a ModelKit; the kind and the packing follow.
pub const KITOPS_PREFIX: &str = "application/vnd.kitops.modelkit.";
/// The config type of ModelKits before they were renamed.
pub const JOZU_CONFIG: &str = "application/vnd.jozu.model.config.v1+json";
/// The prefix of the layer types of those ModelKits.
pub const JOZU_PREFIX: &str = "application/vnd.jozu.model.";

pub const ONNX: &str = "application/onnx";

pub const OCTET_STREAM: &str = "application/octet-stream";

/// The artifact type of the manifests that imports make.
pub const LODE_MODEL: &str = "application/vnd.lode.model.v1";
/// The artifact type of files that clients of Hugging Face's API committed, and that are not a model (yet).
pub const LODE_FILES: &str = "application/vnd.lode.files.v1";
/// The artifact type of model cards that refer to a manifest.
pub const LODE_CARD: &str = "application/vnd.lode.card.v1+markdown";
pub const MARKDOWN: &str = "text/markdown";

/// The annotation in which oras stores the file name of a layer.
pub const TITLE_ANNOTATION: &str = "org.opencontainers.image.title";
/// Annotations that OCI tools display for a manifest.
pub const DESCRIPTION_ANNOTATION: &str = "org.opencontainers.image.description";
pub const LICENSES_ANNOTATION: &str = "org.opencontainers.image.licenses";
pub const CREATED_ANNOTATION: &str = "org.opencontainers.image.created";
pub const VERSION_ANNOTATION: &str = "org.opencontainers.image.version";
/// The annotation in which ModelPack and Docker's model tooling store the file path of a layer.
pub const FILEPATH_ANNOTATION: &str = "org.cncf.model.filepath";
/// ModelPack's former name of the same annotation.
pub const CNAI_FILEPATH_ANNOTATION: &str = "org.cnai.model.filepath";
/// JSON metadata of the file, under both of ModelPack's names; its `name` is the file name without folders.
pub const METADATA_ANNOTATIONS: [&str; 2] =
    ["org.cncf.model.file.metadata+json", "org.cnai.model.file.metadata+json"];
/// The annotations in which OCI tools look for the base of an artifact.
pub const BASE_NAME_ANNOTATION: &str = "org.opencontainers.image.base.name";
pub const BASE_DIGEST_ANNOTATION: &str = "org.opencontainers.image.base.digest";

/// The type without its parameters: `a/b; charset=utf-8` is `a/b`.
pub fn essence(media_type: &str) -> &str {
    media_type.split_once(';').map_or(media_type, |(essence, _)| essence).trim()
}

/// A manifest that lists other manifests.
pub fn is_index(media_type: &str) -> bool {
    matches!(media_type, OCI_INDEX | DOCKER_MANIFEST_LIST)
}

/// A manifest of one config and its layers.
pub fn is_image_manifest(media_type: &str) -> bool {
    matches!(media_type, OCI_MANIFEST | DOCKER_MANIFEST)
}

/// Either kind of manifest.
pub fn is_manifest(media_type: &str) -> bool {
    is_index(media_type) || is_image_manifest(media_type)
}

/// A layer that registries need not store, because clients fetch it from elsewhere.
pub fn is_nondistributable(media_type: &str) -> bool {
    media_type.starts_with("application/vnd.oci.image.layer.nondistributable.v1.")
        || media_type == DOCKER_FOREIGN_LAYER
        || media_type == "application/vnd.docker.image.rootfs.foreign.diff.tar"
}

/// Any layer that ollama makes.
pub fn is_ollama(media_type: &str) -> bool {
    media_type.starts_with(OLLAMA_PREFIX)
}

/// A JSON file of an ollama tensor model, in either spelling.
pub fn is_ollama_json(media_type: &str) -> bool {
    matches!(media_type, OLLAMA_JSON | OLLAMA_CONFIG)
}

/// A ModelPack layer or artifact, under its present or its former name.
pub fn is_modelpack(media_type: &str) -> bool {
    media_type.starts_with(MODELPACK_PREFIX) || media_type.starts_with(CNAI_PREFIX)
}

/// A ModelKit's layer or artifact, under its present or its former name.
pub fn is_kitops(media_type: &str) -> bool {
    media_type.starts_with(KITOPS_PREFIX) || media_type.starts_with(JOZU_PREFIX)
}

/// The config of a Docker model artifact.
pub fn is_docker_model_config(media_type: &str) -> bool {
    matches!(media_type, DOCKER_MODEL_CONFIG_V01 | DOCKER_MODEL_CONFIG_V02)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_dropped() {
        assert_eq!(essence("application/json; charset=utf-8"), "application/json");
        assert_eq!(essence(" application/json "), "application/json");
        assert_eq!(essence(""), "");
    }

    #[test]
    fn predicates() {
        assert!(is_manifest(OCI_MANIFEST) && is_manifest(DOCKER_MANIFEST_LIST) && !is_manifest(OCI_CONFIG));
        assert!(is_index(OCI_INDEX) && !is_index(OCI_MANIFEST));
        assert!(is_nondistributable("application/vnd.oci.image.layer.nondistributable.v1.tar+zstd"));
        assert!(is_nondistributable(DOCKER_FOREIGN_LAYER) && !is_nondistributable(OCI_LAYER_TAR));
        assert!(is_ollama(OLLAMA_TENSOR) && is_ollama_json(OLLAMA_CONFIG) && !is_ollama_json(OLLAMA_MODEL));
        assert!(is_modelpack(MODELPACK_CONFIG) && is_modelpack("application/vnd.cnai.model.weight.v1.raw"));
    }
}
