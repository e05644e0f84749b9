package quota

import "errors"

var (
	// ErrNegative: an amount, price or count below 0. Refuse the input.
	ErrNegative = errors.New("quota: must not be negative")
	// ErrTooLarge: above CreditsMax (2^53-1), or a product that would be. Refuse the input.
	ErrTooLarge = errors.New("quota: exceeds the largest amount, 9007199254740991")
	// ErrDecimal: not a plain decimal with at most 9 places. Refuse the input.
	ErrDecimal = errors.New("quota: not a decimal with at most 9 places after the point")
	// ErrFactor: a reserve factor outside FactorMin … FactorMax. Refuse the input.
	ErrFactor = errors.New("quota: factor must be 1 to 1.5")
	// ErrCount: a number of answers below 1. Refuse the input.
	ErrCount = errors.New("quota: must be at least 1")
	// ErrZone: not a time zone of the tz database. Refuse the input.
	ErrZone = errors.New("quota: unknown time zone")
	// ErrLimit: a rate, burst or concurrency outside its bounds. Refuse the input.
	ErrLimit = errors.New("quota: limit out of bounds")
	// ErrID: not an id of the expected kind. Refuse the input.
	ErrID = errors.New("quota: malformed id")
)
