//! The operations on repositories and models.

use utoipa::openapi::Required;

use super::Group;
use super::operation::{Operation, choice, number, of, text};
use crate::api::MAX_PAGE;
use crate::api::ollama::{create, show};
use crate::api::{blobs, cards, copy, files, import, models, repositories, rules, search};
use crate::app::{DiffRecord, Job, Lineage, SearchSort, TagMovedBack};

const LIST: &str = "nothing; the list has what the caller may read";
const READ: &str = "`read` on the repository";
const WRITE: &str = "`write` on the repository";
const MAINTAIN: &str = "`maintain` on the repository";
const OWN: &str = "`own` on the repository and on its new name";

pub(super) fn repositories() -> Group {
    let tag = text("tag", "Only the moves of this tag.");
    let prefix = text("prefix", "Only this repository and those below it.");
    let size = number("size", "A number of bytes.").required(Required::True);
    let with = text("with", "The other model, such as `team/mini:v1`.").required(Required::True);
    let sorts = SearchSort::ALL.map(SearchSort::as_str);
    let operations = vec![
        Operation::get("/lode/v1/search", "search", "Finds models by words and by their facts")
            .needs(LIST)
            .query(text("q", "Words of names, tags and cards, or a part of a name."))
            .query(text("all", "With any value, repositories that have no models are found, too."))
            .query(text("task", "Such as `text-generation`."))
            .query(text("format", "Such as `gguf`."))
            .query(text("quant", "A quantisation, such as `Q4_K_M`."))
            .query(text("arch", "An architecture, such as `llama`."))
            .query(text("license", "Such as `apache-2.0`."))
            .query(text("min", "The least number of parameters, such as `7B`."))
            .query(text("max", "The most parameters."))
            .query(text("fits", "The memory into which the model has to fit, such as `24GiB`."))
            .query(text("context", "The least length of the context, in tokens."))
            .query(text("base", "The name of a model that it was made from."))
            .query(choice("sort", &sorts, "The order; by default by relevance, without words by time."))
            .pages(search::MAX_HITS)
            .returns_page(of::<search::SearchResult>()),
        Operation::get(
            "/lode/v1/repositories",
            "listRepositories",
            "Lists repositories with their sizes and pulls",
        )
        .needs(LIST)
        .query(prefix)
        .pages(100)
        .returns_page(of::<repositories::RepositoryList>()),
        Operation::get(
            "/lode/v1/repositories/{name}/tags",
            "listTags",
            "Lists tags with digest, kind and size",
        )
        .needs(READ)
        .pages(100)
        .returns_page(of::<repositories::TagList>()),
        Operation::get(
            "/lode/v1/repositories/{name}/manifests",
            "listManifests",
            "Lists all manifests, untagged ones and referrers too",
        )
        .needs(READ)
        .pages(100)
        .returns_page(of::<repositories::ManifestList>()),
        Operation::get(
            "/lode/v1/repositories/{name}/history",
            "listTagMoves",
            "Lists the last 1,000 moves and deletions of tags, newest first",
        )
        .needs(READ)
        .query(tag)
        .pages(100)
        .returns_page(of::<repositories::TagHistory>()),
        Operation::post(
            "/lode/v1/repositories/{name}/history",
            "moveTagBack",
            "Undoes a move or a deletion of a tag",
        )
        .needs(WRITE)
        .body(of::<repositories::MoveBack>())
        .returns(200, "The tag was moved back", of::<TagMovedBack>()),
        Operation::post(
            "/lode/v1/repositories/{name}/move",
            "moveRepository",
            "Moves a repository to a name that has no content",
        )
        .needs(OWN)
        .body(of::<repositories::MoveTo>())
        .returns(200, "The repository has the new name", of::<repositories::MovedRepository>()),
        Operation::get("/lode/v1/repositories/{name}/pulls", "showPulls", "Counts the pulls of each day")
            .needs(READ)
            .returns(200, "The pulls", of::<repositories::Pulls>()),
        Operation::get(
            "/lode/v1/repositories/{name}/retention",
            "showRetention",
            "Shows the retention rule, and what it would remove now",
        )
        .needs(MAINTAIN)
        .returns(200, "The rule", of::<rules::Retention>()),
        Operation::get(
            "/lode/v1/repositories/{name}/card",
            "showRepositoryCard",
            "Shows the card of a repository",
        )
        .needs(READ)
        .returns(200, "The card", of::<cards::RepositoryCard>()),
        Operation::put(
            "/lode/v1/repositories/{name}/card",
            "saveRepositoryCard",
            "Saves the card of a repository",
        )
        .needs(WRITE)
        .body(of::<cards::RepositoryCardRequest>())
        .returns(200, "The card is stored", of::<cards::RepositoryCardSaved>()),
        Operation::delete(
            "/lode/v1/repositories/{name}/card",
            "deleteRepositoryCard",
            "Deletes the card of a repository",
        )
        .needs(WRITE)
        .returns_nothing(204, "The repository has no card"),
        Operation::get("/lode/v1/models", "listModels", "Lists tags that are models")
            .needs(LIST)
            .pages(1000)
            .returns_page(of::<models::ModelList>()),
        Operation::post("/lode/v1/models", "createModel", "Creates a model from a stored one, as a job")
            .needs("`write` on the repository, and `read` on `from`")
            .body(of::<create::Create>())
            .returns(202, "The job", of::<Job>()),
        Operation::post("/lode/v1/import", "importModel", "Copies a model from another server, as a job")
            .needs(WRITE)
            .body(of::<import::Import>())
            .returns(202, "The job", of::<Job>()),
        Operation::get(
            "/lode/v1/models/{name}/{reference}",
            "showModel",
            "Shows a manifest with its summary, config and layers",
        )
        .needs(READ)
        .returns(200, "The manifest", of::<models::ModelDetails>()),
        Operation::get("/lode/v1/tensors/{name}/{reference}", "listTensors", "Lists the tensors of a model")
            .needs(READ)
            .pages(10_000)
            .returns_page(of::<models::TensorList>()),
        Operation::get(
            "/lode/v1/files/{name}/{reference}",
            "listFiles",
            "Lists the files of a manifest, with the address of each",
        )
        .needs(READ)
        .pages(MAX_PAGE)
        .returns_page(of::<files::FileList>()),
        Operation::get("/lode/v1/card/{name}/{reference}", "showCard", "Shows the text of a model card")
            .needs(READ)
            .returns(200, "The card", of::<cards::Card>()),
        Operation::put("/lode/v1/card/{name}/{reference}", "saveCard", "Saves the model card of a tag")
            .needs(WRITE)
            .body(of::<cards::CardRequest>())
            .returns(200, "The card is stored", of::<cards::CardSaved>()),
        Operation::get(
            "/lode/v1/diff/{name}/{reference}",
            "compareModels",
            "Compares two models, tensor by tensor",
        )
        .needs("`read` on both repositories")
        .query(with)
        .streams("A record for each tensor; the last one is the total", of::<DiffRecord>(), false),
        Operation::get(
            "/lode/v1/lineage/{name}/{reference}",
            "showLineage",
            "Shows the origins and relatives of a model",
        )
        .needs(READ)
        .returns(200, "The lineage", of::<Lineage>()),
        Operation::get("/lode/v1/blobs", "findBlobSize", "Tells whether any blob has a size")
            .needs("nothing")
            .query(size)
            .returns(
                200,
                "If none has, content of this size need not be hashed before it is sent",
                of::<blobs::SizeKnown>(),
            ),
        Operation::post("/lode/v1/show", "showModelfile", "Shows a model as Ollama's `/api/show` does")
            .needs(READ)
            .body(of::<show::Show>())
            .returns(200, "The model", of::<show::ShowResponse>()),
        Operation::post("/lode/v1/copy", "copyModel", "Gives a manifest another name, without copying bytes")
            .needs("`read` on `source`, and `write` on `destination`")
            .body(of::<copy::Copy>())
            .returns_nothing(200, "The name exists"),
    ];
    let description = "Stored content: repositories, tags, manifests and models.";
    Group { name: "Repositories and models", description, operations }
}
