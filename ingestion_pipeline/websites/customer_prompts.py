"""Phase 2: the questions a customer would ask without knowing the business, and a direct one.

The operator's own prompts are used as they are; else a model writes them, and templates fill up
what it does not write, or replace it where there is none.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from ingestion_pipeline.reading.llm import Answered, AnswerSchema, Billing, ModelClient, PageText, Prompt, Question
from ingestion_pipeline.settings import Website
from ingestion_pipeline.tasks.errors import Fatal, WorkError
from ingestion_pipeline.websites.business import AskedPrompt, Business, Prompted, PromptedBy
from ingestion_pipeline.websites.mentions import find_mentions
from ingestion_pipeline.websites.name_forms import Names, folded_name

# ruff: noqa: RUF001 - the letters of other scripts are meant

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Templates:
    """The questions of one language; `anything` is the topic of a business that states none."""

    general: tuple[str, ...]
    local: tuple[str, ...]
    direct: str
    anything: str


_ENGLISH = Templates(
    general=(
        "What are the best providers of {topic}?",
        "Which company would you recommend for {topic}?",
        "I am looking for {topic}. What options do I have?",
        "Who are the market leaders for {topic}?",
        "Which {topic} provider offers the best value for money?",
        "What should I look for when choosing {topic}, and who does it well?",
        "Compare the most popular providers of {topic}.",
        "Which providers of {topic} do small businesses trust?",
    ),
    local=("Where can I find {topic} in {place}?", "Who offers {topic} in or near {place}?"),
    direct="What do you know about {name}, and would you recommend it?",
    anything="online services",
)
TEMPLATES: Mapping[str, Templates] = MappingProxyType(
    {
        "en": _ENGLISH,
        "de": Templates(
            general=(
                "Welche Anbieter für „{topic}“ sind die besten?",
                "Welches Unternehmen empfiehlst du für „{topic}“?",
                "Ich suche einen Anbieter für „{topic}“. Welche Möglichkeiten habe ich?",
                "Wer ist Marktführer bei „{topic}“?",
                "Welcher Anbieter für „{topic}“ hat das beste Preis-Leistungs-Verhältnis?",
                "Worauf sollte ich bei „{topic}“ achten, und wer macht es gut?",
                "Vergleiche die bekanntesten Anbieter für „{topic}“.",
                "Welchen Anbietern für „{topic}“ vertrauen kleine Unternehmen?",
            ),
            local=("Wo finde ich „{topic}“ in {place}?", "Wer bietet „{topic}“ in der Nähe von {place} an?"),
            direct="Was weißt du über {name}, und würdest du es empfehlen?",
            anything="Online-Dienste",
        ),
        "fr": Templates(
            general=(
                "Quels sont les meilleurs fournisseurs de « {topic} » ?",
                "Quelle entreprise recommandez-vous pour « {topic} » ?",
                "Je cherche une solution pour « {topic} ». Quelles sont mes options ?",
                "Qui sont les leaders du marché pour « {topic} » ?",
                "Quel fournisseur de « {topic} » a le meilleur rapport qualité-prix ?",
                "Que faut-il regarder pour choisir « {topic} », et qui le fait bien ?",
                "Comparez les fournisseurs les plus connus pour « {topic} ».",
                "Quels fournisseurs de « {topic} » ont la confiance des petites entreprises ?",
            ),
            local=("Où trouver « {topic} » à {place} ?", "Qui propose « {topic} » près de {place} ?"),
            direct="Que savez-vous de {name}, et le recommanderiez-vous ?",
            anything="services en ligne",
        ),
        "es": Templates(
            general=(
                "¿Cuáles son los mejores proveedores de «{topic}»?",
                "¿Qué empresa recomiendas para «{topic}»?",
                "Busco una solución para «{topic}». ¿Qué opciones tengo?",
                "¿Quiénes son los líderes del mercado en «{topic}»?",
                "¿Qué proveedor de «{topic}» tiene la mejor relación calidad-precio?",
                "¿En qué debo fijarme al elegir «{topic}» y quién lo hace bien?",
                "Compara los proveedores más conocidos de «{topic}».",
                "¿En qué proveedores de «{topic}» confían las pequeñas empresas?",
            ),
            local=("¿Dónde encuentro «{topic}» en {place}?", "¿Quién ofrece «{topic}» cerca de {place}?"),
            direct="¿Qué sabes de {name} y lo recomendarías?",
            anything="servicios en línea",
        ),
        "it": Templates(
            general=(
                "Quali sono i migliori fornitori di «{topic}»?",
                "Quale azienda consigli per «{topic}»?",
                "Cerco una soluzione per «{topic}». Quali opzioni ho?",
                "Chi sono i leader di mercato per «{topic}»?",
                "Quale fornitore di «{topic}» ha il miglior rapporto qualità-prezzo?",
                "A che cosa devo badare quando scelgo «{topic}», e chi lo fa bene?",
                "Confronta i fornitori più noti di «{topic}».",
                "Di quali fornitori di «{topic}» si fidano le piccole imprese?",
            ),
            local=("Dove trovo «{topic}» a {place}?", "Chi offre «{topic}» vicino a {place}?"),
            direct="Che cosa sai di {name}, e lo consiglieresti?",
            anything="servizi online",
        ),
        "pt": Templates(
            general=(
                "Quais são os melhores fornecedores de “{topic}”?",
                "Que empresa você recomenda para “{topic}”?",
                "Procuro uma solução para “{topic}”. Que opções tenho?",
                "Quem são os líderes de mercado em “{topic}”?",
                "Que fornecedor de “{topic}” tem a melhor relação custo-benefício?",
                "O que devo observar ao escolher “{topic}”, e quem faz isso bem?",
                "Compare os fornecedores mais conhecidos de “{topic}”.",
                "Em que fornecedores de “{topic}” as pequenas empresas confiam?",
            ),
            local=("Onde encontro “{topic}” em {place}?", "Quem oferece “{topic}” perto de {place}?"),
            direct="O que você sabe sobre {name}, e recomendaria?",
            anything="serviços online",
        ),
        "nl": Templates(
            general=(
                "Wat zijn de beste aanbieders van “{topic}”?",
                "Welk bedrijf raad je aan voor “{topic}”?",
                "Ik zoek een oplossing voor “{topic}”. Welke opties heb ik?",
                "Wie zijn de marktleiders voor “{topic}”?",
                "Welke aanbieder van “{topic}” heeft de beste prijs-kwaliteitverhouding?",
                "Waar moet ik op letten bij “{topic}”, en wie doet het goed?",
                "Vergelijk de bekendste aanbieders van “{topic}”.",
                "Welke aanbieders van “{topic}” vertrouwen kleine bedrijven?",
            ),
            local=("Waar vind ik “{topic}” in {place}?", "Wie biedt “{topic}” aan in de buurt van {place}?"),
            direct="Wat weet je over {name}, en zou je het aanraden?",
            anything="online diensten",
        ),
        "pl": Templates(
            general=(
                "Jakie firmy są najlepsze w dziedzinie „{topic}”?",
                "Jaką firmę polecasz, jeśli chodzi o „{topic}”?",
                "Szukam rozwiązania: „{topic}”. Jakie mam możliwości?",
                "Kto jest liderem rynku w kategorii „{topic}”?",
                "Która firma z kategorii „{topic}” ma najlepszy stosunek jakości do ceny?",
                "Na co zwrócić uwagę, wybierając „{topic}”, i kto robi to dobrze?",
                "Porównaj najbardziej znane firmy z kategorii „{topic}”.",
                "Którym firmom z kategorii „{topic}” ufają małe przedsiębiorstwa?",
            ),
            local=("Gdzie znajdę „{topic}” ({place})?", "Kto oferuje „{topic}” w okolicy: {place}?"),
            direct="Co wiesz o firmie {name} i czy ją polecasz?",
            anything="usługi internetowe",
        ),
        "ru": Templates(
            general=(
                "Какие компании лучшие в категории «{topic}»?",
                "Какую компанию вы порекомендуете для «{topic}»?",
                "Я ищу решение: «{topic}». Какие есть варианты?",
                "Кто лидирует на рынке «{topic}»?",
                "У кого лучшее соотношение цены и качества в категории «{topic}»?",
                "На что обратить внимание при выборе «{topic}» и кто делает это хорошо?",
                "Сравните самые известные компании в категории «{topic}».",
                "Каким компаниям в категории «{topic}» доверяет малый бизнес?",
            ),
            local=("Где найти «{topic}» ({place})?", "Кто предлагает «{topic}» рядом: {place}?"),
            direct="Что вы знаете о компании {name} и порекомендуете ли вы её?",
            anything="онлайн-услуги",
        ),
        "ja": Templates(
            general=(
                "「{topic}」でおすすめの会社はどこですか？",
                "「{topic}」を提供している代表的な企業を教えてください。",
                "「{topic}」を探しています。どんな選択肢がありますか？",
                "「{topic}」の市場で有力な企業はどこですか？",
                "「{topic}」でコストパフォーマンスが良いのはどこですか？",
                "「{topic}」を選ぶときのポイントと、評判の良い会社を教えてください。",
                "「{topic}」の人気サービスを比較してください。",
                "中小企業に信頼されている「{topic}」の会社はどこですか？",
            ),
            local=(
                "{place}で「{topic}」を探すならどこが良いですか？",
                "{place}の近くで「{topic}」を提供しているのはどこですか？",
            ),
            direct="{name}について知っていることを教えてください。おすすめできますか？",
            anything="オンラインサービス",
        ),
        "zh": Templates(
            general=(
                "“{topic}”领域最好的公司有哪些？",
                "您推荐哪家公司的“{topic}”？",
                "我在寻找“{topic}”，有哪些选择？",
                "“{topic}”市场的领先企业是谁？",
                "哪家“{topic}”的性价比最高？",
                "选择“{topic}”时应注意什么？谁做得好？",
                "请比较“{topic}”领域最受欢迎的公司。",
                "小企业信任哪些“{topic}”公司？",
            ),
            local=("在{place}哪里可以找到“{topic}”？", "{place}附近谁提供“{topic}”？"),
            direct="您了解{name}吗？会推荐它吗？",
            anything="在线服务",
        ),
    }
)


def templates_for(language: str | None) -> tuple[str, Templates]:
    """Return the language and its templates; English where there are none."""
    primary = (language or "").partition("-")[0].lower()
    return (primary, TEMPLATES[primary]) if primary in TEMPLATES else ("en", _ENGLISH)


VERSION = "website prompts 1"
CALL_SITE = "website_prompts"
SAME = 92  # percent of likeness from which two prompts are the same
LEAST_CHARACTERS, MOST_CHARACTERS = 8, 400
MOST_TOPIC_CHARACTERS = 80
_SIGNS = re.compile(r"[\W_]+")
SCHEMA = AnswerSchema(
    name="questions",
    schema={
        "type": "object",
        "properties": {"questions": {"type": "array", "items": {"type": "string"}}},
        "required": ["questions"],
        "additionalProperties": False,
    },
)
_INSTRUCTIONS = """\
The text says what a business is. Write {count} different questions that somebody would ask an
assistant who needs what the business offers and has never heard of it. The questions are of your
own making, in the language {language!r}; none of them names the business. Some ask for
recommendations, some compare, some name the place if there is one."""


async def prompts_for(
    business: Business,
    *,
    settings: Website,
    model: ModelClient | None = None,
    own: Sequence[str] = (),
    source_id: str | None = None,
) -> Prompted:
    """Return the prompts to ask, the direct one last; there is always one."""
    if own:
        return Prompted(prompts=tuple(_operator_prompts(own, business.names)))
    count = max(settings.prompts - 1, 0)
    questions = await _ask_model(business, model, count, source_id) if model is not None and count else ()
    return Prompted(prompts=choose_prompts(business, questions, count=settings.prompts))


def choose_prompts(business: Business, questions: Sequence[str], *, count: int) -> tuple[AskedPrompt, ...]:
    """Return `count` prompts: suitable ones of the model, then templates, the direct one last."""
    offered = dict.fromkeys(map(_tidy, questions), PromptedBy.MODEL)
    for text in map(_tidy, templated(business)):
        offered.setdefault(text, PromptedBy.TEMPLATES)
    fit = [text for text in offered if is_fit(text, business.names)]
    prompts = [
        AskedPrompt(text=text, is_direct=False, by=offered[text]) for text in unique_prompts(fit)[: max(count - 1, 0)]
    ]
    _, templates = templates_for(business.language)
    direct = templates.direct.format(name=business.name)
    return (*prompts, AskedPrompt(text=direct, is_direct=True, by=PromptedBy.TEMPLATES))


def templated(business: Business) -> Iterator[str]:
    """Yield every template with every topic, each template once before any twice."""
    _, templates = templates_for(business.language)
    topics = topics_of(business) or [templates.anything]
    place = business.location
    if place and not find_mentions(place, business.names):
        yield templates.local[0].format(topic=topics[0], place=place)
    for turn in range(len(topics)):
        for number, question in enumerate(templates.general):
            yield question.format(topic=topics[(number + turn) % len(topics)])


def topics_of(business: Business) -> list[str]:
    """Return what the business offers in a few words, without its name."""
    fit = [
        topic
        for topic in (business.industry, *business.keywords)
        if topic and len(topic) <= MOST_TOPIC_CHARACTERS and not find_mentions(topic, business.names)
    ]
    return list({topic.lower(): topic for topic in fit}.values())


def is_fit(prompt: str, names: Names) -> bool:
    """Return whether the prompt has a proper length and does not give the name away."""
    if not LEAST_CHARACTERS <= len(prompt) <= MOST_CHARACTERS or find_mentions(prompt, names):
        return False
    # A plain word may give the name away: `target` for Target.
    words = {folded_name(word) for word in _SIGNS.split(prompt)}
    return not any(form.folded in words for form in names.forms(None) if form.words == 1)


def unique_prompts(prompts: Iterable[str]) -> list[str]:
    """Return the prompts without those that are the same but for spelling, or nearly the same."""
    from rapidfuzz import fuzz

    unique: dict[str, str] = {}
    for prompt in map(_tidy, prompts):
        form = _SIGNS.sub(" ", folded_name(prompt)).strip()
        if form and all(fuzz.ratio(form, other) < SAME for other in unique):
            unique[form] = prompt
    return list(unique.values())


def _operator_prompts(own: Sequence[str], names: Names) -> Iterator[AskedPrompt]:
    """Yield every prompt of the operator; "men" and "women", 5 and 50 differ."""
    different: dict[str, str] = {}
    for text in map(_tidy, own):
        different.setdefault(text.lower().rstrip(" .?!"), text)  # "Maße" is not "Masse"
    for text in different.values():
        yield AskedPrompt(text=text, is_direct=bool(find_mentions(text, names)), by=PromptedBy.OPERATOR)


def _tidy(text: str) -> str:
    return " ".join(text.split())


async def _ask_model(business: Business, model: ModelClient, count: int, source_id: str | None) -> Sequence[str]:
    """Return the model's questions; none, and log why, if it cannot be asked."""
    # A model writes any language, templates exist for some only.
    language = business.language or templates_for(None)[0]
    question = Question(
        prompt=Prompt(
            name="website_prompts", version=1, instructions=_INSTRUCTIONS.format(count=count, language=language)
        ),
        schema=SCHEMA,
        page=PageText(text=_about(business)),
        extractor_version=f"{VERSION} {count} {language}",
    )
    try:
        answer = await model.ask(question, Billing(call_site=CALL_SITE, source_id=source_id))
    except Fatal:
        raise
    except WorkError as error:
        log.warning("model formed no prompts source=%s code=%s: %s", source_id, error.code, error.text)
        return ()
    if not isinstance(answer, Answered):
        log.warning("model formed no prompts source=%s code=model_unanswered: %s", source_id, answer)
        return ()
    return [str(text) for text in cast("list[object]", answer.data["questions"])]


def _about(business: Business) -> str:
    lines = {
        "Industry": business.industry,
        "What it does": business.description,
        "Where": business.location,
        "Keywords": ", ".join(business.keywords),
        "Name (not to be used)": business.name,
    }
    return "\n".join(f"{label}: {value}" for label, value in lines.items() if value)
