// The pages' texts in Korean.

export const KO = {
  // states, phases, parts
  queued: "대기", running: "실행 중", succeeded: "성공", failed: "실패", cancelled: "취소됨", "timed out": "시간 초과",
  fetch: "가져오기", parse: "파싱", calibrate: "캘리브레이션", quantize: "양자화", codegen: "코드 생성", verify: "검증", store: "저장",
  input: "입력", output: "출력", in: "읽기", compute: "연산", out: "쓰기", wait: "대기",
  yes: "예", no: "아니요", all: "전체", none: "없음", exact: "정확함", device: "장치", error: "오차", layer: "레이어", light: "밝게", dark: "어둡게",
  // frame
  "Skip to the content": "본문으로 건너뛰기",
  Pages: "페이지", Language: "언어", Theme: "테마", "as the system": "시스템 설정", API: "API", Errors: "오류",
  // jobs
  Jobs: "작업", Job: "작업", "New job": "새 작업", Type: "종류", State: "상태", Device: "장치", Scheme: "추론 방식", Preset: "프리셋",
  Accuracy: "정확도", "Run time": "실행 시간", Made: "생성 시각", Label: "레이블", Labels: "레이블",
  "Older jobs": "이전 작업 더 보기", Compare: "비교", "Compare {0}": "{0} 비교", "Compare two": "두 개 비교", "from the cache": "캐시에서",
  "No job is like that.": "조건에 맞는 작업이 없습니다.",
  "No jobs yet. Start the first one.": "아직 작업이 없습니다. 첫 작업을 시작하세요.",
  // one job
  Request: "요청", Result: "결과", Stages: "단계", Progress: "진행률", Engine: "엔진", Model: "모델", Calibration: "캘리브레이션",
  "random numbers: not for release": "무작위 값: 배포용이 아님",
  "Source revision": "소스 리비전", "Build key": "빌드 키", "Again after": "다음 작업의 재실행", Waiting: "대기", "{0} before it": "앞에 {0}개",
  Waited: "대기 시간", Attempts: "시도 횟수", Cache: "캐시", "answered from a finished build": "완료된 빌드를 재사용",
  "shares a running build": "실행 중인 빌드를 공유", "Bytes agree": "바이트 일치", "Accuracy of {0}": "{0}의 정확도", Warning: "경고",
  "Bundle with everything to build again": "다시 빌드하는 데 필요한 모든 것을 담은 번들", Checklist: "체크리스트", Provenance: "출처 증명",
  "The same by command": "명령으로 똑같이 하기", "Copy as {0}": "{0}(으)로 복사", Copy: "복사", Copied: "복사됨", "Press Ctrl+C": "Ctrl+C를 누르세요",
  Log: "로그", "{0}: {1} of {2}": "{0}: {2} 중 {1}", Cancel: "취소", "Run again": "다시 실행",
  "Build again and compare the bytes": "다시 빌드하여 바이트 비교", "What to do": "해결 방법", "Change and build again": "바꿔서 다시 빌드", "{0}, which the server has": "{0} (서버에 있음)",
  // a build
  "Reading the report and the graph…": "보고서와 그래프를 읽는 중…", "What to try next": "다음에 시도할 것",
  "Quantization error by layer": "레이어별 양자화 오차",
  "Signal to quantization noise; higher is better. So far: with the errors of all layers before. Of its own: with exact inputs.":
    "신호 대 양자화 잡음비이며 높을수록 좋습니다. 누적: 앞선 모든 레이어의 오차를 포함. 자체: 정확한 입력을 받았을 때.",
  "Error so far": "누적 오차", "Error of its own": "자체 오차", "No.": "번호", Layer: "레이어", Layers: "레이어", Operator: "연산자", Bits: "비트",
  Saturated: "포화", "Range used": "사용 범위", Order: "정렬", "All {0} layers": "레이어 {0}개 모두 보기",
  "worst error so far": "누적 오차가 큰 순", "worst error of its own": "자체 오차가 큰 순", "execution order": "실행 순서",
  "Estimated time and memory": "예상 시간과 메모리",
  "Estimates rest on assumptions about the device, which the report lists; they are no measurements.":
    "예상값은 보고서에 적힌 장치 가정에 근거하며 측정값이 아닙니다.",
  Cores: "코어", Cycles: "사이클", Latency: "지연 시간", "Inputs per second": "초당 입력", "Array used": "연산기 사용률", "On chip": "온칩",
  "External traffic": "외부 메모리 전송량", "Timeline, scheme {0}": "타임라인, 추론 방식 {0}", "Estimated timeline of {0} cores": "코어 {0}개의 예상 타임라인",
  "Point at a span for its layer.": "구간을 가리키면 레이어가 표시됩니다.", "core {0} {1}": "코어 {0} {1}", "{0} cycles": "{0} 사이클", "cycles {0} to {1}": "사이클 {0}~{1}",
  "Quantization error along the graph; the table below has the numbers.": "그래프를 따라 본 양자화 오차. 수치는 아래 표에 있습니다.",
  // graph
  Graph: "그래프", "Graph of {0} layers": "레이어 {0}개의 그래프",
  "Graph of {0} layers. Arrows: next and previous layer; plus, minus: zoom; 0: all of it; shift and arrows: move.":
    "레이어 {0}개의 그래프. 화살표: 다음과 이전 레이어, 더하기와 빼기: 확대와 축소, 0: 전체 보기, Shift와 화살표: 이동.",
  Search: "검색", "name or operator": "이름 또는 연산자", "{0} found": "{0}개 찾음", "Colour by": "색 기준", "Zoom in": "확대", "Zoom out": "축소",
  "All of it": "전체 보기", "Choose a layer.": "레이어를 선택하세요.", "the graph cannot be drawn": "그래프를 그릴 수 없습니다",
  Name: "이름", Kind: "종류", "Made from": "원본 노드", "Runs on": "실행 위치", Why: "이유", Inputs: "입력", Outputs: "출력", Shapes: "형상",
  Parameters: "파라미터", "Multiply-adds": "곱셈-덧셈", "Read as": "읽는 형식", "Written as": "쓰는 형식", scale: "스케일", "zero point": "영점",
  // comparison
  "Compare two builds": "두 빌드 비교", "Choose two jobs in the list of jobs.": "작업 목록에서 두 작업을 선택하세요.", "Reading…": "읽는 중…", Results: "결과",
  "Settings that differ": "서로 다른 설정", Setting: "설정", "None: both have the same settings.": "없음: 두 빌드의 설정이 같습니다.", "Error by layer": "레이어별 오차",
  "Top-1 agreement of {0}": "{0}의 Top-1 일치율", "Size of the {0}": "{0} 크기", "Estimated latency, {0}": "예상 지연 시간, {0}",
  "The two have no layers in common.": "두 빌드에 공통된 레이어가 없습니다.", "Layers that differ most": "차이가 가장 큰 레이어", "No layer's error differs.": "오차가 다른 레이어가 없습니다.",
  // form
  "Calibration data": "캘리브레이션 데이터", "Target device": "대상 장치", "Inference scheme": "추론 방식", "Input shapes": "입력 형상",
  "Drop an .onnx file here (with its external data, if any) or an .mblt, or choose it.":
    ".onnx 파일(외부 데이터가 있으면 함께) 또는 .mblt 파일을 여기에 놓거나 선택하세요.",
  "Drop an archive, a folder or samples. Without any, random numbers are used: not for release.":
    "압축 파일, 폴더 또는 샘플을 놓으세요. 없으면 무작위 값을 쓰며, 그 결과는 배포용이 아닙니다.",
  "For inputs whose model leaves dimensions open; several with spaces between.": "모델에서 차원이 정해지지 않은 입력용입니다. 여러 개는 공백으로 구분합니다.",
  "Run layers that the NPU lacks on the CPU": "NPU가 지원하지 않는 레이어를 CPU에서 실행",
  "Start the job": "작업 시작", "Starting the job": "작업을 시작하는 중", "Sending {0}, {1}": "{0} 전송 중, {1}", "The server checks {0}": "서버가 {0} 확인 중", "{0} files": "파일 {0}개",
  "Choose files": "파일 선택", "Choose a model first.": "먼저 모델을 선택하세요.", "Choose one .onnx or .mblt file; others with it are its external data.":
    ".onnx 또는 .mblt 파일을 하나만 선택하세요. 함께 놓은 다른 파일은 외부 데이터로 처리합니다.",
  "{0}: write it like x=1,3,224,224": "{0}: x=1,3,224,224처럼 쓰세요", "{0}: write a label like team=vision": "{0}: 레이블은 team=vision처럼 쓰세요",
  Configuration: "설정", "JSON, laid over the preset": "JSON, 프리셋 위에 덮어씀", "It is checked against the server's schema while you type.": "입력하는 동안 서버의 스키마로 검사합니다.",
  "Start from the preset's settings": "프리셋 설정에서 시작", "The configuration is valid.": "설정이 올바릅니다.", "The configuration is wrong.": "설정이 잘못되었습니다.",
  "must be an object in braces": "중괄호로 된 객체여야 합니다", "unknown; did you mean {0}?": "알 수 없는 키입니다. 혹시 {0}?",
  // keys, trouble
  Keys: "키", "Access token": "접근 토큰", "This server asks for a token.": "이 서버는 토큰이 필요합니다.", "It is kept until this tab is closed.": "이 탭을 닫을 때까지 보관됩니다.",
  "Use it": "사용", "Forget it": "지우기", "A token is in use.": "토큰을 사용 중입니다.", "No token is in use.": "사용 중인 토큰이 없습니다.",
  "Keys that sign provenance": "출처 증명에 서명하는 키", "Packages are checked against them with": "패키지 검사 명령:",
  "This server signs nothing; its operator can give it a key.": "이 서버는 서명하지 않습니다. 운영자가 키를 설정할 수 있습니다.",
  "the server answered {0}": "서버 응답: {0}", "the server cannot be reached": "서버에 연결할 수 없습니다",
};
