package quota

// Credits are counted in int64 and never exceed CreditsMax, because Redis' Lua
// computes in doubles, which are exact only up to 2^53.
const (
	// CreditsMax is the largest amount that any account, hold or charge may have.
	CreditsMax int64 = 1<<53 - 1
	// Unlimited is the total of an account without a limit. It is a mode, not an
	// amount: it never takes part in arithmetic.
	Unlimited int64 = -1
)

// CheckAmount refuses what is not an amount of credits: below 0 or above CreditsMax.
func CheckAmount(credits int64) error {
	if credits < 0 {
		return ErrNegative
	}
	if credits > CreditsMax {
		return ErrTooLarge
	}
	return nil
}

// Add returns a+b, or ErrNegative/ErrTooLarge if an operand or the sum is no amount.
func Add(a, b int64) (int64, error) {
	if err := CheckAmount(a); err != nil {
		return 0, err
	}
	if err := CheckAmount(b); err != nil {
		return 0, err
	}
	if a+b > CreditsMax {
		return 0, ErrTooLarge
	}
	return a + b, nil
}

// Mul returns a·b, or ErrNegative/ErrTooLarge if an operand or the product is no amount.
func Mul(a, b int64) (int64, error) {
	if err := CheckAmount(a); err != nil {
		return 0, err
	}
	if err := CheckAmount(b); err != nil {
		return 0, err
	}
	if a != 0 && b > CreditsMax/a {
		return 0, ErrTooLarge
	}
	return a * b, nil
}
