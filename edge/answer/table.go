package answer

// Shape is the convention that a client expects errors in.
type Shape uint8

// The shapes.
const (
	OpenAI Shape = iota
	Anthropic
)

// Code is the error code of a refusal; clients match on it.
type Code string

// The codes of the data plane.
const (
	InvalidAPIKey       Code = "invalid_api_key"
	KeyDisabled         Code = "key_disabled"
	TenantSuspended     Code = "tenant_suspended"
	ModelNotAllowed     Code = "model_not_allowed"
	InvalidRequest      Code = "invalid_request"
	UnknownRoute        Code = "unknown_route"
	UnknownRequest      Code = "unknown_request"
	MethodNotAllowed    Code = "method_not_allowed"
	IdempotencyInFlight Code = "idempotency_in_flight"
	IdempotencyReplayed Code = "idempotency_replayed"
	RequestIDConflict   Code = "request_id_conflict"
	AlreadySettled      Code = "already_settled"
	AlreadyReleased     Code = "already_released"
	RequestTooLarge     Code = "request_too_large"
	HeadersTooLarge     Code = "headers_too_large"
	RequestTimeout      Code = "request_timeout"
	RateLimitExceeded   Code = "rate_limit_exceeded"
	InsufficientQuota   Code = "insufficient_quota"
	PaymentRequired     Code = "payment_required"
	QuotaUnavailable    Code = "quota_unavailable"
	NodeBusy            Code = "node_busy"
	UpstreamBusy        Code = "upstream_busy"
	Draining            Code = "draining"
	UpstreamAuthFailed  Code = "upstream_auth_failed"
	UpstreamUnreachable Code = "upstream_unreachable"
	UpstreamTimeout     Code = "upstream_timeout"
	InternalError       Code = "internal_error"
)

// row is one line of the table.
type row struct {
	status    int
	openAI    string // error.type on OpenAI's routes
	anthropic string // error.type on Anthropic's
}

var table = map[Code]row{
	InvalidAPIKey:       {401, "invalid_request_error", "authentication_error"},
	KeyDisabled:         {403, "invalid_request_error", "permission_error"},
	TenantSuspended:     {403, "invalid_request_error", "permission_error"},
	ModelNotAllowed:     {403, "invalid_request_error", "permission_error"},
	InvalidRequest:      {400, "invalid_request_error", "invalid_request_error"},
	UnknownRoute:        {404, "invalid_request_error", "not_found_error"},
	UnknownRequest:      {404, "invalid_request_error", "not_found_error"},
	MethodNotAllowed:    {405, "invalid_request_error", "not_found_error"},
	IdempotencyInFlight: {409, "invalid_request_error", "invalid_request_error"},
	IdempotencyReplayed: {409, "invalid_request_error", "invalid_request_error"},
	RequestIDConflict:   {409, "invalid_request_error", "invalid_request_error"},
	AlreadySettled:      {409, "invalid_request_error", "invalid_request_error"},
	AlreadyReleased:     {409, "invalid_request_error", "invalid_request_error"},
	RequestTooLarge:     {413, "invalid_request_error", "request_too_large"},
	HeadersTooLarge:     {431, "invalid_request_error", "request_too_large"},
	RequestTimeout:      {408, "invalid_request_error", "invalid_request_error"},
	RateLimitExceeded:   {429, "requests", "rate_limit_error"}, // "tokens" where tokens were short
	InsufficientQuota:   {429, "insufficient_quota", "billing_error"},
	PaymentRequired:     {402, "insufficient_quota", "billing_error"},
	QuotaUnavailable:    {503, "server_error", "overloaded_error"},
	NodeBusy:            {503, "server_error", "overloaded_error"},
	UpstreamBusy:        {503, "server_error", "overloaded_error"},
	Draining:            {503, "server_error", "overloaded_error"},
	UpstreamAuthFailed:  {502, "server_error", "api_error"},
	UpstreamUnreachable: {502, "server_error", "api_error"},
	UpstreamTimeout:     {504, "server_error", "api_error"},
	InternalError:       {500, "server_error", "api_error"},
}

// Status is the HTTP status of a code.
func (c Code) Status() int { return table[c].status }
