"""What the corpus names, as codes of CLDR: lists of our own, so that another version of the data has the same items."""

from __future__ import annotations

__all__ = [
    "CITIES",
    "COUNTRIES",
    "CURRENCIES",
    "LANGUAGES",
    "SCRIPTS",
    "SYMBOL_CURRENCIES",
    "TERRITORIES",
    "UNITS",
    "ZONES",
]


def _codes(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# German uses these without an article, so that "in" and "aus" stand right before them.
COUNTRIES = _codes(
    "AD AF AL DZ AO AR AM AT AU AZ BH BD BB BY BE BZ BJ BT BO BW BR BG BF BI KH CM CA CV CL CN CO CR HR CU CY CZ DK DJ "
    "EC EG SV GQ ER EE SZ ET FI FR GA GE DE GH GR GT GN GY HT HN HU IS IN ID IE IL IT JM JP JO KZ KE KW KG LA LV LS LR "
    "LY LI LT LU MG MW MY ML MT MR MX MC ME MA MZ NA NP NZ NI NG KP MK NO PK PA PG PY PE PL PT QA RO RU RW SM SA RS SL "
    "SG SI SO ZA KR ES LK SR SE SY TW TJ TZ TH TG TO TN TM UG UY UZ VE VN ZM ZW GL PR"
)

# These have an article, or are islands, and stand only where no grammar is needed.
TERRITORIES = _codes(
    "AE AG AI AQ AS AW AX BA BM BS BV CF CH CK CW CX DO EH FK FM FO GB GF GI GM GP GU IC IM IQ IR KI KM KY LB MH MN MP "
    "MQ MS MU MV NC NE NF NL NR OM PF PH PW RE SB SC SD SK SN SS ST TC TD TR TT TV UA US UY VA VG VU WS YE"
)

LANGUAGES = _codes(
    "af am ar as az ba be bg bn bo br bs ca co cs cy da de el en eo es et eu fa fi fo fr ga gl gu he hi hr hu hy id is "
    "it ja jv ka kk km ko ku ky la lb lo lt lv mk mn ms mt my ne nl no oc pl ps pt qu rm ro ru sa sc sk sl so sq sr sv "
    "sw ta te tg th tk tr tt ug uk ur uz vi wo yi yo zh zu"
)

SCRIPTS = _codes(
    "Arab Armn Bali Beng Brai Bugi Cher Copt Cprt Cyrl Deva Ethi Geor Glag Goth Grek Gujr Hang Hani Hebr Hira Ital "
    "Java Kana Knda Kore Laoo Latn Lyci Lydi Mlym Mong Ogam Orya Phnx Runr Samr Sinh Sogd Sund Syrc Taml Telu Tfng "
    "Tibt Ugar Xpeo Yiii"
)

# Identifiers of time zones that are called after a city.
CITIES = _codes(
    "Africa/Addis_Ababa Africa/Algiers Africa/Asmera Africa/Cairo Africa/Casablanca Africa/Dakar Africa/Dar_es_Salaam "
    "Africa/Harare Africa/Johannesburg Africa/Kampala Africa/Khartoum Africa/Lagos Africa/Maputo Africa/Mogadishu "
    "Africa/Nairobi Africa/Tripoli Africa/Tunis Africa/Windhoek America/Asuncion America/Bogota America/Caracas "
    "America/Chicago America/Denver America/Havana America/La_Paz America/Lima America/Los_Angeles America/Managua "
    "America/Mexico_City America/Montevideo America/New_York America/Santiago America/Sao_Paulo America/Toronto "
    "America/Vancouver Asia/Almaty Asia/Amman Asia/Ashgabat Asia/Baghdad Asia/Baku Asia/Bangkok Asia/Beirut "
    "Asia/Bishkek Asia/Calcutta Asia/Colombo Asia/Damascus Asia/Dhaka Asia/Dubai Asia/Dushanbe Asia/Hong_Kong "
    "Asia/Jakarta Asia/Jerusalem Asia/Kabul Asia/Karachi Asia/Katmandu Asia/Krasnoyarsk Asia/Manila Asia/Muscat "
    "Asia/Nicosia Asia/Novosibirsk Asia/Pyongyang Asia/Rangoon Asia/Riyadh Asia/Seoul Asia/Shanghai Asia/Taipei "
    "Asia/Tashkent Asia/Tbilisi Asia/Tehran Asia/Tokyo Asia/Urumqi Asia/Vladivostok Asia/Yakutsk Asia/Yekaterinburg "
    "Asia/Yerevan Australia/Brisbane Australia/Melbourne Australia/Perth Australia/Sydney Europe/Amsterdam "
    "Europe/Athens Europe/Belgrade Europe/Berlin Europe/Bratislava Europe/Brussels Europe/Bucharest Europe/Budapest "
    "Europe/Copenhagen Europe/Dublin Europe/Helsinki Europe/Istanbul Europe/Kiev Europe/Lisbon Europe/Ljubljana "
    "Europe/London Europe/Madrid Europe/Minsk Europe/Moscow Europe/Oslo Europe/Paris Europe/Prague Europe/Riga "
    "Europe/Rome Europe/Samara Europe/Sarajevo Europe/Skopje Europe/Sofia Europe/Stockholm Europe/Tallinn "
    "Europe/Vienna Europe/Vilnius Europe/Volgograd Europe/Warsaw Europe/Zagreb Europe/Zurich Pacific/Auckland "
    "Pacific/Honolulu"
)

CURRENCIES = _codes(
    "ALL AMD ARS AUD BGN BRL CAD CHF CLP COP CUP CZK DKK DZD EGP EUR GBP GEL HUF IDR ILS INR IQD IRR ISK JOD JPY KRW "
    "KZT LBP MAD MKD MXN NOK NPR PEN PHP PKR PLN RON RSD RUB SEK THB TND TRY UAH USD UYU VND"
)

# Those with a symbol in both languages.
SYMBOL_CURRENCIES = _codes("EUR USD GBP JPY INR BRL CAD")

# Metazones of CLDR, with a standard time.
ZONES = _codes(
    "Alaska Arabian Argentina Armenia Atlantic Australia_Eastern Australia_Western Chile China Colombia Cuba "
    "Europe_Central Europe_Eastern Europe_Western Georgia Israel Japan Korea Moscow New_Zealand Newfoundland Omsk "
    "Pakistan Paraguay Peru Philippines Singapore Uruguay Vladivostok Yakutsk"
)

# Identifiers of units by what they measure, each with its lowest and highest figure and its decimals. German plurals in
# -n would differ by case: templates put quantities where the nominative or the accusative stands.
UNITS: dict[str, tuple[tuple[str, int, int, int], ...]] = {
    "area": (
        ("area-hectare", 2, 900, 1),
        ("area-square-foot", 50, 9000, 0),
        ("area-square-kilometer", 2, 5000, 1),
        ("area-square-meter", 10, 5000, 0),
        ("area-square-mile", 2, 900, 0),
    ),
    "data": (
        ("digital-gigabyte", 1, 900, 1),
        ("digital-kilobyte", 2, 900, 0),
        ("digital-megabyte", 1, 900, 1),
        ("digital-terabyte", 1, 40, 1),
    ),
    "distance": (
        ("length-kilometer", 1, 9000, 1),
        ("length-meter", 100, 9000, 0),
        ("length-mile", 1, 3000, 0),
        ("length-nautical-mile", 2, 3000, 0),
    ),
    "duration": (
        ("duration-day", 1, 30, 0),
        ("duration-hour", 1, 48, 0),
        ("duration-minute", 2, 90, 0),
        ("duration-month", 1, 24, 0),
        ("duration-second", 2, 90, 0),
        ("duration-week", 1, 20, 0),
        ("duration-year", 1, 20, 0),
    ),
    "energy": (
        ("energy-joule", 10, 900, 0),
        ("energy-kilocalorie", 10, 9000, 0),
        ("energy-kilojoule", 10, 9000, 0),
        ("energy-kilowatt-hour", 2, 9000, 1),
    ),
    "length": (
        ("length-centimeter", 2, 900, 0),
        ("length-foot", 2, 90, 0),
        ("length-inch", 2, 90, 0),
        ("length-meter", 1, 90, 1),
        ("length-millimeter", 2, 9000, 0),
    ),
    "power": (
        ("power-gigawatt", 1, 20, 1),
        ("power-kilowatt", 1, 9000, 1),
        ("power-megawatt", 1, 2000, 1),
        ("power-watt", 10, 9000, 0),
    ),
    "speed": (
        ("speed-kilometer-per-hour", 5, 350, 0),
        ("speed-knot", 2, 40, 0),
        ("speed-meter-per-second", 1, 90, 1),
        ("speed-mile-per-hour", 5, 220, 0),
    ),
    "temperature": (
        ("temperature-celsius", -25, 42, 0),
        ("temperature-fahrenheit", -10, 105, 0),
        ("temperature-kelvin", 200, 320, 0),
    ),
    "volume": (
        ("volume-barrel", 2, 2000, 0),
        ("volume-cubic-meter", 1, 5000, 1),
        ("volume-gallon", 2, 900, 0),
        ("volume-liter", 1, 5000, 1),
        ("volume-milliliter", 10, 900, 0),
    ),
    "weight": (
        ("mass-gram", 2, 900, 0),
        ("mass-kilogram", 1, 900, 1),
        ("mass-ounce", 2, 90, 0),
        ("mass-pound", 2, 900, 0),
        ("mass-tonne", 1, 90, 1),
    ),
}
